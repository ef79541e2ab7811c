import { after, before, describe, test } from 'node:test';
import { assert, cleanup, create, started, until } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-watch'); });

// gather keeps reading a watcher's events.
function gather(watcher) {
  const all = [];
  (async () => { for await (const event of watcher) all.push(event); })().catch((err) => all.push({ type: 'failed', err }));
  return all;
}

describe('watches', { concurrency: true }, () => {
  test('122 files: subscribed, then create, write, remove; several paths; recursive', async () => {
    const fs = sprite.filesystem('/home/sprite');
    await fs.mkdir('one/sub', { recursive: true });
    await fs.mkdir('two', { recursive: true });
    const watcher = await fs.watch(['one', 'two'], { recursive: true });
    const all = gather(watcher);
    await until('subscribed', () => all.find((e) => e.type === 'subscribed'));
    const told = (path, event) => until(`${event} of ${path}`, () => all.find((e) => e.event === event && e.path === path));
    await fs.writeFile('one/sub/a', 'hello');
    await told('/home/sprite/one/sub/a', 'create');
    await sprite.execFile('sh', ['-c', 'echo more >>one/sub/a']);
    await told('/home/sprite/one/sub/a', 'write');
    await fs.rm('one/sub/a');
    await told('/home/sprite/one/sub/a', 'remove');
    await fs.writeFile('two/b', '');
    await told('/home/sprite/two/b', 'create');
    watcher.close();
  });

  test('122 files: a missing path is an error', async () => {
    const watcher = await sprite.filesystem('/').watch('/no/such/path');
    const all = gather(watcher);
    const { message } = await until('the error', () => all.find((e) => e.type === 'error'));
    assert.equal(typeof message, 'string');
    watcher.close();
  });

  test('124 ports: what listens already, then opened and closed, with pid', async () => {
    const listen = (port) => started(sprite, 'python3', ['-c', `import socket, time
s = socket.socket(); s.bind(("127.0.0.1", ${port})); s.listen(); print("ready", flush=True); time.sleep(1000)`]);
    const first = await listen(4001);
    await until('the listener', () => first.stdout === 'ready\n');
    const watcher = await sprite.watchPorts();
    const all = gather(watcher);
    const list = await until('the list', () => all.find((e) => e.type === 'port_list'));
    const had = list.ports.find((p) => p.port === 4001);
    assert.ok(had && had.pid > 0 && had.address === '127.0.0.1', JSON.stringify(list));
    const second = await listen(4002);
    const opened = await until('opened', () => all.find((e) => e.type === 'port_opened' && e.port === 4002));
    assert.ok(opened.pid > 0);
    second.cmd.kill('KILL');
    await until('closed', () => all.find((e) => e.type === 'port_closed' && e.port === 4002));
    watcher.close();
    first.cmd.kill('KILL');
    await Promise.all([first.exit, second.exit]);
  });
});
