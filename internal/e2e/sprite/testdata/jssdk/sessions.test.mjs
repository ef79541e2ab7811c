import { after, before, describe, test } from 'node:test';
import { assert, cleanup, create, elsewhere, opened, recent, refused, session, sleep, started, until } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-sessions'); });

const listed = async (id) => (await sprite.listSessions()).find((s) => s.id === id);
const gone = (id) => until(`the end of session ${id}`, async () => !(await listed(id)));

async function events(stream) {
  const all = [];
  for await (const event of stream) all.push(event);
  return all;
}

describe('sessions', { concurrency: 4 }, () => {
  test('50 sessions: a running one is listed, an ended one is not', async () => {
    const run = await started(sprite, 'sh', ['-c', 'echo hello; read x', 'js-50'], { cwd: '/tmp' });
    const found = await session(sprite, 'js-50');
    await until('output', () => run.stdout === 'hello\n');
    assert.match(found.command, /sh -c echo hello; read x js-50$/);
    assert.equal(found.workdir, '/tmp');
    assert.equal(found.tty, false);
    recent(found.created);
    const active = await listed(found.id);
    assert.equal(active.isActive, true);
    assert.equal(typeof active.bytesPerSecond, 'number');
    assert.ok(active.lastActivity >= active.created);
    run.cmd.stdin.end('x\n');
    assert.equal(await run.exit, 0);
    assert.equal(await listed(found.id), undefined);
  });

  test('51 attach: after a dropped connection, scrollback and then what comes', async () => {
    const found = await elsewhere(sprite, 'js-51-plain', 'echo one; echo two >&2; read x; echo "got $x"; exit 9', { maxRunAfterDisconnect: '1h' });
    const again = await opened(sprite.attachSession(found.id));
    await until('scrollback', () => again.stdout === 'one\n' && again.stderr === 'two\n');
    again.cmd.stdin.write('three\n');
    assert.equal(await again.exit, 9);
    assert.equal(again.stdout, 'one\ngot three\n');
  });

  test('51 attach: two clients of a terminal see the same', async () => {
    const first = await opened(sprite.createSession('sh', ['-c', 'stty -echo; echo one; read x; echo "got $x"', 'js-51-tty'], { tty: true }));
    await until('output', () => first.stdout.includes('one'));
    const { id } = await session(sprite, 'js-51-tty');
    const second = await opened(sprite.attachSession(id));
    await until('scrollback', () => second.stdout.includes('one'));
    assert.equal(second.messages[0].type, 'session_info');
    assert.equal(second.messages[0].tty, true);
    assert.deepEqual([first.messages[0].is_owner ?? false, second.messages[0].is_owner ?? false], [true, false]);
    second.cmd.stdin.write('two\n');
    assert.deepEqual(await Promise.all([first.exit, second.exit]), [0, 0]);
    assert.equal(first.stdout, 'one\r\ngot two\r\n');
    assert.equal(second.stdout, first.stdout);
  });

  test('52 attach: an unknown session is an error', async () => {
    for (const id of ['999999', 'none', 'a/b', '..']) {
      await assert.rejects(opened(sprite.attachSession(id)), undefined, id);
    }
  });

  test('55 dropped: a terminal goes on for ever, other commands do not', async () => {
    const [tty, plain] = await Promise.all([
      elsewhere(sprite, 'js-55-tty', 'echo up; while :; do sleep 1; done', { tty: true }),
      elsewhere(sprite, 'js-55-plain', 'echo up; while :; do sleep 1; done'),
    ]);
    await gone(plain.id); // after 10 s
    assert.ok(await listed(tty.id));
    await events(await sprite.killSession(tty.id, 'KILL'));
  });

  test('117 dropped: max_run_after_disconnect', async () => {
    const [short, long] = await Promise.all([
      elsewhere(sprite, 'js-117-short', 'echo up; sleep 1000', { maxRunAfterDisconnect: '1s' }),
      elsewhere(sprite, 'js-117-long', 'echo up; sleep 3; echo still; touch /tmp/js-117; read x', { maxRunAfterDisconnect: '1h' }),
    ]);
    await gone(short.id);
    await until('its word', () => sprite.exec('test -e /tmp/js-117').then(() => true, () => false));
    const again = await opened(sprite.attachSession(long.id));
    await until('what it has said meanwhile', () => again.stdout === 'up\nstill\n');
    again.cmd.stdin.write('\n');
    assert.equal(await again.exit, 0);
  });

  test('118 kill: ends with complete', async () => {
    const run = await started(sprite, 'sleep', ['1018']);
    const { id } = await session(sprite, 'sleep 1018');
    const all = await events(await sprite.killSession(id, undefined, '10m'));
    assert.deepEqual(all.map((e) => e.type), ['signal', 'exited', 'complete']);
    assert.equal(all[0].signal, 'SIGTERM');
    assert.ok(all[0].pid > 0);
    assert.equal(all[2].exitCode, 143);
    assert.equal(await run.exit, 143);
    await refused(sprite.killSession(id), 410, 'session_ended');
    for (const unknown of ['999999', 'none', 'a/b']) {
      await refused(sprite.killSession(unknown), 404, 'session_not_found');
    }
  });

  test('118 kill: what ignores TERM is killed after the timeout', async () => {
    const run = await started(sprite, 'sh', ['-c', 'trap "" TERM; echo deaf; while :; do sleep 1; done', 'js-118']);
    await until('the trap', () => run.stdout === 'deaf\n');
    const { id } = await session(sprite, 'js-118');
    const all = await events(await sprite.killSession(id, 'SIGTERM', '300ms'));
    assert.deepEqual(all.map((e) => e.type), ['signal', 'timeout', 'killed', 'complete']);
    assert.equal(all[3].exitCode, 137);
    assert.equal(await run.exit, 137);
  });

  test('118 kill: another signal, without waiting', async () => {
    const run = await started(sprite, 'sh', ['-c', 'trap "echo heard; exit 4" USR1; echo ready; while :; do sleep 0.1; done', 'js-118-usr1']);
    await until('the trap', () => run.stdout === 'ready\n');
    const { id } = await session(sprite, 'js-118-usr1');
    const all = await events(await sprite.killSession(id, 'USR1', '0s'));
    assert.deepEqual(all.map((e) => e.type), ['signal', 'complete']);
    assert.equal(await run.exit, 4);
    assert.equal(run.stdout, 'ready\nheard\n');
    const other = await started(sprite, 'sleep', ['1019']);
    const found = await session(sprite, 'sleep 1019');
    await refused(sprite.killSession(found.id, 'NOSUCH'), 400, 'invalid_request');
    other.cmd.kill('KILL');
    assert.equal(await other.exit, 137);
  });
});
