import { after, before, describe, test } from 'node:test';
import { assert, cleanup, create, until } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-services'); });

// events reads a stream to its end.
async function events(stream) {
  const all = [];
  for await (const event of await stream) all.push(event);
  return all;
}

// longEnough has a stream that is cut after a time, and longer if what is wanted has not
// come by then. Before it is asked for again, what it did is undone.
async function longEnough(stream, wanted, undo = () => {}) {
  for (let limit = 1; ; limit *= 6) {
    const all = await events(stream(`${limit}s`));
    if (all.some(wanted) || limit > 600) return all;
    await undo();
  }
}

const types = (all) => all.map((e) => e.type);
const state = async (name) => (await sprite.getService(name)).state;
const running = (name, not = 0) => until(`${name} runs`, async () => {
  const now = await state(name);
  return now.status === 'running' && now.pid !== not && now;
});

describe('services', { concurrency: false }, () => {
  test('88 create: events, and complete as the last', async () => {
    const shop = { cmd: 'sh', args: ['-c', 'echo open $A $PWD; exec sleep 1000'], env: { A: 'b c' }, dir: '/tmp', httpPort: 4100 };
    const all = await longEnough((limit) => sprite.createService('shop', shop, limit), (e) => e.type === 'stdout', () => sprite.deleteService('shop'));
    assert.equal(types(all).at(0), 'started');
    assert.equal(types(all).at(-1), 'complete');
    assert.equal(all.find((e) => e.type === 'stdout').data, 'open b c /tmp\n');
    assert.equal(all.at(-1).logFiles.combined, '/.sprite/logs/services/shop.log');
  });

  test('90 list: the definition and its state', async () => {
    const [shop, ...more] = await sprite.listServices();
    assert.deepEqual(more, []);
    assert.deepEqual([shop.name, shop.cmd, shop.args[0], shop.needs], ['shop', 'sh', '-c', []]);
    assert.equal((await running('shop')).restartCount ?? 0, 0);
  });

  test('89 http port: only one service has it', async () => {
    await assert.rejects(sprite.createService('other', { cmd: 'true', httpPort: 1 }), /409|conflict|HTTP port/i);
  });

  test('125 restart: a new pid; env, dir, http port come back; logs have their lines', async () => {
    const { pid } = await running('shop');
    const opened = async () => (await events(sprite.getServiceLogs('shop', { lines: 10, duration: '100ms' }))).filter((e) => e.type === 'stdout').length;
    await until('its first line', async () => (await opened()) > 0);
    const before = await opened();
    assert.ok(types(await longEnough((limit) => sprite.restartService('shop', limit), (e) => e.type === 'stopped')).includes('stopped'));
    await running('shop', pid);
    const shop = await sprite.getService('shop');
    assert.deepEqual([shop.env, shop.dir, shop.httpPort], [{ A: 'b c' }, '/tmp', 4100]);
    await until('its line', async () => (await opened()) > before);
    const logs = await events(sprite.getServiceLogs('shop', { lines: 1, duration: '100ms' }));
    assert.deepEqual(types(logs), ['stdout', 'complete']);
  });

  test('94 signal: reaches it; unknown services and signals are errors', async () => {
    await sprite.signalService('shop', 'CONT');
    await assert.rejects(sprite.signalService('shop', 'NONE'), /400|invalid/i);
    await assert.rejects(sprite.signalService('nobody', 'HUP'), /404|not found/i);
  });

  test('91 stop: is sticky; a crash is not', async () => {
    const { pid } = await running('shop');
    await sprite.signalService('shop', 'KILL');
    await running('shop', pid);
    assert.deepEqual(types(await events(sprite.stopService('shop', '5s'))).at(-1), 'complete');
    assert.equal((await state('shop')).status, 'stopped');
  });

  test('92 stop: of a stopped one, and of none', async () => {
    await assert.rejects(sprite.stopService('shop'), /409|not running/i);
    await assert.rejects(sprite.stopService('nobody'), /404|not found/i);
  });

  test('128 start: runs again, and its stream begins at once', async () => {
    const stream = await sprite.startService('shop', '1h');
    assert.equal((await stream.next()).type, 'started');
    stream.close();
    await sprite.deleteService('shop');
    assert.deepEqual(await sprite.listServices(), []);
  });
});
