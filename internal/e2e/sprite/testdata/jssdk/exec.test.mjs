import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ExecError } from '@fly/sprites';
import { assert, cleanup, client, connect, create, session, sleep, started, until } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-exec'); });

describe('exec', { concurrency: 6 }, () => {
  test('3 handshake: refused without the token', async () => {
    await assert.rejects(started(connect({}, 'wrong').sprite('js-exec'), 'true'));
  });

  test('26 argv: not split again, output exact', async () => {
    const { stdout } = await sprite.execFile('printf', ['[%s]', 'a b', '$HOME', "it's", '', '*', '\\n', 'ä']);
    assert.equal(stdout, "[a b][$HOME][it's][][*][\\n][ä]");
    assert.equal((await sprite.exec('echo one two')).stdout, 'one two\n');
  });

  test('27 dir: by default below /home', async () => {
    assert.match((await sprite.exec('pwd')).stdout, /^\/home\//);
  });

  test('28 dir: as asked for', async () => {
    assert.equal((await sprite.exec('pwd', { cwd: '/tmp' })).stdout, '/tmp\n');
  });

  test('29 env: is seen, and programs are found', async () => {
    const { stdout } = await sprite.execFile('sh', ['-c', 'echo "$A|$B|$HOME"'], { env: { A: '1=2&3', B: 'ü x' } });
    assert.match(stdout, /^1=2&3\|ü x\|\/home\/.*\n$/);
  });

  test('30 exit code: passes', async () => {
    for (const code of [1, 42, 255]) {
      const err = await sprite.execFile('sh', ['-c', `echo out; echo err >&2; exit ${code}`]).catch((e) => e);
      assert.ok(err instanceof ExecError, `${err}`);
      assert.deepEqual([err.exitCode, err.stdout, err.stderr], [code, 'out\n', 'err\n']);
    }
  });

  test('31 stdin: data, then its end', async () => {
    const cat = await started(sprite, 'cat');
    cat.cmd.stdin.write('one\n');
    cat.cmd.stdin.write('two\n');
    cat.cmd.stdin.end();
    assert.equal(await cat.exit, 0);
    assert.equal(cat.stdout, 'one\ntwo\n');
  });

  test('33 stdin: none for a while is no end', async () => {
    const cat = await started(sprite, 'cat');
    await sleep(2000);
    cat.cmd.stdin.end('late\n');
    assert.equal(await cat.exit, 0);
    assert.equal(cat.stdout, 'late\n');
  });

  test('34 streams: apart', async () => {
    const { stdout, stderr } = await sprite.execFile('sh', ['-c', 'echo out; echo err >&2']);
    assert.deepEqual([stdout, stderr], ['out\n', 'err\n']);
    const raw = await sprite.execFile('printf', ['\\377\\0'], { encoding: 'latin1' });
    assert.equal(raw.stdout, '\xff\0');
  });

  test('35 no TTY: none', async () => {
    const err = await sprite.exec('tty').catch((e) => e);
    assert.deepEqual([err.exitCode, err.stdout], [1, 'not a tty\n']);
  });

  test('36 TTY: a device', async () => {
    const run = await started(sprite, 'tty', [], { tty: true });
    assert.equal(await run.exit, 0);
    assert.match(run.stdout, /^\/dev\/pts\/\d+\r\n$/);
  });

  test('37 TTY: its size is there from the start', async () => {
    for (const [options, size] of [[{}, '24 80'], [{ rows: 24, cols: 80 }, '24 80'], [{ rows: 50, cols: 132 }, '50 132']]) {
      const run = await started(sprite, 'stty', ['size'], { tty: true, ...options });
      assert.equal(await run.exit, 0);
      assert.equal(run.stdout, `${size}\r\n`);
    }
  });

  test('38 TTY: success and failure are told apart', async () => {
    for (const code of [0, 7]) {
      const run = await started(sprite, 'sh', ['-c', `echo end; exit ${code}`], { tty: true });
      assert.equal(await run.exit, code === 0 ? 0 : 1); // all that this SDK can see
      assert.equal(run.stdout, 'end\r\n');
      const end = run.messages.find((m) => m.type === 'exit');
      assert.equal(end.exit_code, code);
      assert.equal(run.messages[0].type, 'session_info');
    }
  });

  test('39 exit: comes after all output, however fast', async () => {
    for (let i = 0; i < 30; i++) {
      assert.equal((await sprite.execFile('echo', [`${i}`])).stdout, `${i}\n`);
    }
  });

  test('40 TTY: resize', async () => {
    const run = await started(sprite, 'sh', ['-c', 'echo ready; read line; stty size'], { tty: true });
    await until('ready', () => run.stdout.includes('ready'));
    run.cmd.resize(101, 31);
    run.cmd.stdin.write('go\n');
    assert.equal(await run.exit, 0);
    assert.match(run.stdout, /31 101\r\n$/);
  });

  test('41 signals: 128 and the number, with and without SIG', async () => {
    const numbers = { SIGTERM: 15, KILL: 9, SIGHUP: 1, INT: 2, sigquit: 3, SIGUSR1: 10, usr2: 12 };
    await Promise.all(Object.entries(numbers).map(async ([name, number]) => {
      const run = await started(sprite, 'sleep', ['1000']);
      run.cmd.kill(name);
      assert.equal(await run.exit, 128 + number, name);
    }));
    const run = await started(sprite, 'sleep', ['1000']);
    run.cmd.kill();
    assert.equal(await run.exit, 143);
  });

  test('42 output: streams as it is made', async () => {
    const run = await started(sprite, 'sh', ['-c', 'echo first; read line; echo "second $line"']);
    await until('the first line', () => run.stdout === 'first\n');
    run.cmd.stdin.write('go\n');
    assert.equal(await run.exit, 0);
    assert.equal(run.stdout, 'first\nsecond go\n');
  });

  test('43 commands: ten at once', async () => {
    const all = await Promise.all(Array.from({ length: 10 }, (_, i) => sprite.execFile('sh', ['-c', `sleep 0.3; echo ${i}`])));
    assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 10 }, (_, i) => `${i}\n`));
  });

  test('45 output: 10 MB, whole and in order', async () => {
    const cmd = sprite.spawn('seq', ['-f', '%09.0f', '1', '1000000']);
    const hash = createHash('sha256');
    let size = 0;
    cmd.stdout.on('data', (data) => { hash.update(data); size += data.length; });
    assert.equal(await cmd.wait(), 0);
    const want = createHash('sha256');
    for (let i = 1; i <= 1_000_000; i++) want.update(`${String(i).padStart(9, '0')}\n`);
    assert.equal(size, 10_000_000);
    assert.equal(hash.digest('hex'), want.digest('hex'));
  });

  test('47 program: not found is 127, not executable 126', async () => {
    for (const [file, code] of [['no-such-program', 127], ['/no/such/program', 127], ['/etc/passwd', 126]]) {
      const err = await sprite.execFile(file).catch((e) => e);
      assert.equal(err.exitCode, code, `${err}`);
      assert.ok(err.stderr.includes(file), err.stderr);
    }
  });

  test('48 sprite: an unknown one is an error', async () => {
    await assert.rejects(started(client.sprite('js-none'), 'true'));
  });

  test('112 exit: is the last, and the process then ends', async () => {
    const child = spawn(process.execPath, [fileURLToPath(new URL('once.mjs', import.meta.url)), 'js-exec'], { stdio: ['ignore', 'pipe', 'inherit'] });
    let out = '';
    child.stdout.on('data', (data) => { out += data; });
    const [code] = await once(child, 'close');
    const [word, at] = out.split(' ');
    assert.deepEqual([code, word], [0, 'once']);
    // A close that is not answered holds it for 30 s.
    assert.ok(Date.now() - Number(at) < 25_000, `it ended ${Date.now() - Number(at)} ms after the command`);
  });

  test('113 stdin: 4 MiB in one message, to a slow reader and to one that does not read', async () => {
    const input = Buffer.alloc(4 << 20);
    for (let i = 0; i < input.length; i++) input[i] = (i * 7919) >> 3;
    const slow = await started(sprite, 'sh', ['-c', 'sleep 1; sha256sum']);
    slow.cmd.stdin.end(input);
    assert.equal(await slow.exit, 0);
    assert.equal(slow.stdout, `${createHash('sha256').update(input).digest('hex')}  -\n`);
    for (const script of ['exit 3', 'sleep 0.5; exit 3']) {
      const unread = await started(sprite, 'sh', ['-c', script]);
      unread.cmd.stdin.end(input);
      assert.equal(await unread.exit, 3);
    }
  });

  test('115 exit: comes though a child holds the output', async () => {
    const { stdout } = await sprite.execFile('sh', ['-c', 'sleep 1000 & echo done']);
    assert.equal(stdout, 'done\n');
    const run = await started(sprite, 'sh', ['-c', 'sleep 1000 & echo done'], { tty: true });
    assert.equal(await run.exit, 0);
    assert.equal(run.stdout, 'done\r\n');
  });

  test('119 control: there is none, and a failing command runs once', async () => {
    const controlled = connect({ controlMode: true }).sprite('js-exec');
    assert.equal((await controlled.execFile('echo', ['hi'])).stdout, 'hi\n');
    const err = await controlled.execFile('sh', ['-c', 'echo ran >> /tmp/once; exit 5']).catch((e) => e);
    assert.equal(err.exitCode, 5, `${err}`);
    assert.equal((await sprite.exec('cat /tmp/once')).stdout, 'ran\n');
  });
});
