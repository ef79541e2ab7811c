import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { connect as dial } from 'node:net';
import { after, before, describe, test } from 'node:test';
import { assert, cleanup, create, started, until } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-proxy'); });

// listen starts a server in the sprite: a program of Perl's, which has $l, the
// listener, and for each connection $c.
async function listen(t, address, port, each) {
  const run = await started(sprite, 'perl', ['-MIO::Socket::INET', '-e', `
    $| = 1;
    $l = IO::Socket::INET->new(LocalAddr => '${address}', LocalPort => ${port}, Listen => 100, ReuseAddr => 1) or die $@;
    print "ready\\n";
    while ($c = $l->accept) { if (fork) { close $c; next } ${each}; close $c; exit }`]);
  t.after(async () => { run.cmd.kill('KILL'); await run.exit; });
  await until('the listener', () => { assert.equal(run.stderr, ''); return run.stdout === 'ready\n'; });
}

async function forward(t, port, host) {
  const session = await sprite.proxyPort(0, port, host);
  t.after(() => session.close());
  return Number(/(\d+)$/.exec(session.localAddr())[1]);
}

// talk connects, says something, and returns what it hears until it has heard
// enough, or the other side ends.
async function talk(port, say, enough = Infinity) {
  const socket = dial(port, 'localhost');
  const parts = [];
  let size = 0;
  socket.on('data', (data) => {
    parts.push(data);
    size += data.length;
    if (size >= enough) socket.destroy();
  });
  await once(socket, 'connect');
  if (say) socket.write(say);
  await once(socket, 'close');
  return Buffer.concat(parts);
}

const echo = 'while (sysread $c, $b, 65536) { syswrite $c, $b }';

describe('proxy', { concurrency: 4 }, () => {
  test('80 echo: both directions, 2 MiB', async (t) => {
    await listen(t, '127.0.0.1', 8080, echo);
    const port = await forward(t, 8080);
    const data = randomBytes(2 << 20);
    const heard = await talk(port, data, data.length);
    assert.equal(createHash('sha256').update(heard).digest('hex'), createHash('sha256').update(data).digest('hex'));
    const all = await Promise.all(Array.from({ length: 10 }, (_, i) => talk(port, `hello ${i}`, 7)));
    assert.deepEqual(all.map(String), Array.from({ length: 10 }, (_, i) => `hello ${i}`));
  });

  test('81 closed port: the connection ends', async (t) => {
    const port = await forward(t, 8081);
    assert.equal((await talk(port, 'hello').catch(() => '')).length, 0);
  });

  test('82 hosts: localhost, 127.0.0.1, ::1 reach the loopback', async (t) => {
    await listen(t, '127.0.0.1', 8082, echo);
    await listen(t, '0.0.0.0', 8182, echo);
    for (const remote of [8082, 8182]) {
      for (const host of [undefined, 'localhost', '127.0.0.1', '::1']) {
        assert.equal(String(await talk(await forward(t, remote, host), 'hello', 5)), 'hello', `${host}:${remote}`);
      }
    }
  });

  test('83 end: of the remote side ends the connection', async (t) => {
    await listen(t, '127.0.0.1', 8083, 'sysread $c, $b, 100; syswrite $c, "bye"');
    const session = await sprite.proxyPorts([{ localPort: 0, remotePort: 8083 }]);
    t.after(() => session.forEach((s) => s.close()));
    assert.equal(String(await talk(Number(/(\d+)$/.exec(session[0].localAddr())[1]), 'hello')), 'bye');
  });

  test('123 greeting: a server that speaks first is heard, 10 of 10', async (t) => {
    await listen(t, '127.0.0.1', 8123, 'syswrite $c, "220 hello\\r\\n"; sysread $c, $b, 100');
    const port = await forward(t, 8123);
    for (let i = 0; i < 10; i++) assert.equal(String(await talk(port, '', 11)), '220 hello\r\n', `${i}`);
  });
});
