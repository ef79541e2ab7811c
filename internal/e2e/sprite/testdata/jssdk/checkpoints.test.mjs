import { after, before, describe, test } from 'node:test';
import { assert, cleanup, client, create, recent, started, until } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-checkpoints'); });

// told collects what a stream of a checkpoint's or a restore's tells.
const told = async (stream) => {
  const events = [];
  await stream.processAll((event) => { events.push(event); });
  return events;
};
const list = async () => (await sprite.listCheckpoints());

describe('checkpoints', { concurrency: false }, () => {
  test('96 checkpoint: a stream that ends, and a new entry with the comment', async () => {
    await sprite.execFile('sh', ['-c', 'echo one >file; mkdir folder; echo kept >folder/old']);
    const events = await told(await sprite.createCheckpoint('before the upgrade'));
    assert.equal(events[0].type, 'info');
    assert.equal(events.at(-1).type, 'complete');
    assert.match(events.at(-1).data, /v1/);
    const made = (await list()).find((c) => c.id === 'v1');
    assert.equal(made.comment, 'before the upgrade');
    recent(new Date(made.createTime));
    assert.equal((await sprite.getCheckpoint('v1')).comment, 'before the upgrade');
    await assert.rejects(sprite.getCheckpoint('v9'), /not found: v9/);
    await assert.rejects(client.sprite('js-none').listCheckpoints(), /404/);
  });

  test('97 checkpoint: the list has what is current', async () => {
    const ids = (await list()).map((c) => c.id);
    assert.deepEqual(ids, ['Current', 'v1']);
    assert.equal((await list())[0].sourceId, 'v1');
  });

  test('98 restore: old bytes come back, newer files go, sessions end', async () => {
    await sprite.execFile('sh', ['-c', 'echo two >file; rm -r folder; touch newer']);
    const running = await started(sprite, 'sleep', ['1000']);
    await told(await sprite.createCheckpoint());
    assert.deepEqual((await list()).map((c) => c.id), ['Current', 'v2', 'v1']);
    assert.equal((await sprite.exec('cat file')).stdout, 'two\n'); // and the command goes on
    const events = await told(await sprite.restoreCheckpoint('v1'));
    assert.equal(events.at(-1).type, 'complete');
    assert.notEqual(await running.exit, 0);
    await until('the sprite', () => sprite.exec('true').catch(() => null));
    assert.equal((await sprite.exec('cat file folder/old')).stdout, 'one\nkept\n');
    await assert.rejects(sprite.execFile('test', ['-e', 'newer']));
    assert.deepEqual((await list()).map((c) => c.id), ['Current', 'v2', 'v1']);
    await assert.rejects(sprite.restoreCheckpoint('v9').then(told), /404|no checkpoint/);
  });
});
