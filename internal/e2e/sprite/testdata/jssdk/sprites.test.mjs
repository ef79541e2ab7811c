import { after, describe, test } from 'node:test';
import { assert, cleanup, client, connect, create, recent, refused, session, started, until } from './lib.mjs';

after(cleanup);

describe('sprites', { concurrency: 4 }, () => {
  test('1 token: without the right one, 401', async () => {
    for (const secret of ['wrong', 'a/b/c']) {
      await refused(connect({}, secret).listSprites(), 401, 'unauthorized');
      await refused(connect({}, secret).createSprite('never'), 401, 'unauthorized');
    }
  });

  test('10 create: name, labels, settings', async () => {
    const sprite = await create('js-create', {
      config: { ramMB: 512, cpus: 1, region: 'ord', storageGB: 5 },
      environment: { someKey: 'a b', HTTP_PROXY: '' },
      urlSettings: { auth: 'public', privateAccess: 'org_users' },
      labels: ['a', 'b'],
      waitForCapacity: true,
    });
    assert.equal(sprite.name, 'js-create');
    const got = await client.getSprite('js-create');
    assert.deepEqual(got.labels, ['a', 'b']);
    assert.equal(got.urlSettings.auth, 'public');
    assert.equal(got.urlSettings.privateAccess, 'org_users');
    assert.equal(got.config.cpus, 1);
    assert.equal(got.config.ramMB, 512);
    assert.deepEqual(got.environment, { someKey: 'a b', HTTP_PROXY: '' });
    assert.equal((await got.execFile('printenv', ['someKey'])).stdout, 'a b\n');
  });

  test('11 create: a command runs', async () => {
    const sprite = await create('js-soon');
    assert.equal((await sprite.exec('echo soon')).stdout, 'soon\n');
  });

  test('12 get: right after create', async () => {
    await create('js-get');
    const sprite = await client.getSprite('js-get');
    assert.equal(sprite.name, 'js-get');
    assert.notEqual(sprite.id ?? '', '');
    assert.notEqual(sprite.organizationName ?? '', '');
    assert.equal(sprite.status, 'cold');
    recent(sprite.createdAt);
    assert.ok(sprite.updatedAt >= sprite.createdAt);
    assert.equal(sprite.lastRunningAt, undefined);
    assert.deepEqual(sprite.labels, []);
    await refused(client.getSprite('js-none'), 404, 'not_found');
  });

  test('13 create: a taken name', async () => {
    await create('js-taken');
    await refused(client.createSprite('js-taken'), 409, 'name_taken');
  });

  test('14 create: unknown settings are ignored', async () => {
    const sprite = await create('js-unknown', { runtime: 'dev', waitForCapacity: true, config: { moon: 3 } });
    assert.equal(sprite.name, 'js-unknown');
    await refused(create('js-new', { labels: [], somethingNew: { a: 1 } }), 400, 'bad_request'); // it is none of the protocol's
  });

  test('15 list: maxResults', async () => {
    await Promise.all(['js-max-1', 'js-max-2', 'js-max-3'].map((name) => create(name)));
    const page = await client.listSprites({ prefix: 'js-max-', maxResults: 2 });
    assert.deepEqual(page.sprites.map((s) => s.name), ['js-max-1', 'js-max-2']);
    assert.equal(page.hasMore, true);
  });

  test('16 list: maxResults beyond the bound is clamped', async () => {
    for (const maxResults of [100, 100_000]) {
      assert.ok((await client.listSprites({ maxResults })).sprites.length >= 0);
    }
  });

  test('17 list: pages, and listAllSprites', async () => {
    const names = Array.from({ length: 53 }, (_, i) => `js-many-${String(i).padStart(2, '0')}`);
    for (const name of names) await create(name, { labels: [name] });
    const got = [];
    const tokens = new Set();
    for (let token; ;) {
      const page = await client.listSprites({ prefix: 'js-many-', maxResults: 20, continuationToken: token });
      got.push(...page.sprites.map((s) => s.name));
      token = page.nextContinuationToken ?? undefined;
      assert.equal(page.hasMore, token !== undefined);
      if (!page.hasMore) break;
      assert.ok(!tokens.has(token));
      tokens.add(token);
    }
    assert.deepEqual(got, names);
    const all = await client.listAllSprites('js-many-');
    assert.deepEqual(all.map((s) => s.name), names);
    assert.deepEqual(all[52].labels, ['js-many-52']);
  });

  test('18 list: prefix', async () => {
    await create('js-pre-a');
    await create('js-pro-b');
    const list = await client.listSprites({ prefix: 'js-pre' });
    assert.deepEqual(list.sprites.map((s) => s.name), ['js-pre-a']);
    assert.deepEqual((await client.listSprites({ prefix: 'js-p%' })).sprites, []);
    assert.deepEqual(await client.listAllSprites('js-pxe'), []);
  });

  test('19 list: totals', async () => {
    const sprite = await create('js-total');
    await sprite.exec('true');
    const list = await client.listSprites({ maxResults: 1 });
    assert.ok(list.running >= 1, `${list.running} are running`);
    assert.ok(list.cold >= 0);
    assert.ok(list.warm >= 0);
    assert.notEqual(list.organizationName ?? '', '');
    assert.equal(typeof list.runningLimit, 'number');
  });

  test('20 update: answers with the sprite', async () => {
    const sprite = await create('js-put');
    const updated = await sprite.update({ labels: ['x'], urlSettings: { auth: 'public' } });
    assert.equal(updated.name, 'js-put');
    assert.deepEqual(updated.labels, ['x']);
    assert.equal(updated.urlSettings.auth, 'public');
    await sprite.updateURLSettings({ auth: 'sprite' });
    assert.equal((await client.getSprite('js-put')).urlSettings.auth, 'sprite');
    await refused(client.updateSprite('js-none', { labels: [] }), 404, 'not_found');
  });

  test('21 delete: and it is gone', async () => {
    const sprite = await create('js-delete');
    await sprite.exec('true');
    await sprite.destroy();
    await refused(client.getSprite('js-delete'), 404, 'not_found');
    await refused(client.deleteSprite('js-delete'), 404, 'not_found');
    assert.ok(!(await client.listAllSprites('js-delete')).length);
  });

  test('22 upgrade: the disk stays', async () => {
    const sprite = await create('js-upgrade');
    await sprite.exec('touch kept');
    await sprite.upgrade();
    assert.equal((await sprite.exec('ls')).stdout, 'kept\n');
    await refused(client.upgradeSprite('js-none'), 404, 'not_found');
  });

  test('23 status: list, get and check do not wake, exec does', async () => {
    const sprite = await create('js-status');
    await client.listSprites({ prefix: 'js-status' });
    await sprite.check();
    assert.deepEqual(await sprite.listSessions(), []);
    assert.equal((await client.getSprite('js-status')).status, 'cold');
    await sprite.exec('true');
    const info = await client.getSprite('js-status');
    assert.equal(info.status, 'running');
    recent(info.lastRunningAt);
  });

  test('105 path: segments are decoded after splitting', async () => {
    await create('js-path');
    for (const name of ['a/b', 'js-path/check', '../version', 'js-path?x=1', 'js-path#', 'ä', 'js path']) {
      await refused(client.getSprite(name), 404, 'not_found');
      await refused(client.checkSprite(name), 404, 'not_found');
    }
  });

  test('106 errors: a code and a message', async () => {
    for (const name of ['Bad_Name', '-x', 'a b', '', 'a'.repeat(64)]) {
      const err = await refused(client.createSprite(name), 400, 'bad_name');
      assert.ok(err.message.length > 20 && !err.message.includes('[object'), err.message);
    }
    await refused(client.createSprite('js-bad', { urlSettings: { auth: 'all' } }), 400, 'bad_request');
    await refused(client.createSprite('js-bad', { config: { ramMB: -1 } }), 400, 'bad_request');
  });

  test('107 update: labels clear, the rest stays', async () => {
    const sprite = await create('js-update', { labels: ['a'], urlSettings: { auth: 'sprite', privateAccess: 'admins' } });
    let info = await sprite.update({ urlSettings: { auth: 'public' } });
    assert.deepEqual(info.labels, ['a']);
    assert.deepEqual({ ...info.urlSettings }, { auth: 'public', privateAccess: 'admins' });
    info = await sprite.update({ labels: [] });
    assert.deepEqual(info.labels, []);
    info = await client.getSprite('js-update');
    assert.deepEqual(info.labels, []);
    assert.deepEqual({ ...info.urlSettings }, { auth: 'public', privateAccess: 'admins' });
  });

  test('108 list: bulk_load, totals, tokens', async () => {
    await create('js-bulk-a');
    await create('js-bulk-b');
    const first = await client.listSprites({ prefix: 'js-bulk-', bulkLoad: true, maxResults: 1 });
    const second = await client.listSprites({ prefix: 'js-bulk-', bulkLoad: true, maxResults: 1, continuationToken: first.nextContinuationToken });
    assert.deepEqual([...first.sprites, ...second.sprites].map((s) => s.name), ['js-bulk-a', 'js-bulk-b']);
    assert.ok(first.hasMore && !second.hasMore);
    assert.ok(first.cold >= 2);
    assert.equal(second.nextContinuationToken ?? undefined, undefined);
  });

  test('109 list watch: a line per sprite and per change, heartbeats', async (t) => {
    const sprite = await create('js-watch-a');
    await create('js-watched');
    const stream = await client.watchSprites({ prefix: 'js-watch-' });
    t.after(() => stream.close());
    const next = async (name, status) => {
      let event;
      do event = await stream.next(); while (event.type === 'heartbeat'); // they come by time
      assert.equal(event.name, name);
      assert.equal(event.status, status);
      recent(event.timestamp);
      assert.ok(event.organization.cold + event.organization.running >= 1);
      return event;
    };
    await next('js-watch-a', 'cold');
    assert.equal((await stream.next()).type, 'heartbeat');
    await sprite.exec('true');
    const running = await next('js-watch-a', 'running');
    assert.ok(running.lastRunningAt instanceof Date && running.runningVersion !== undefined);
    await create('js-watch-b');
    await next('js-watch-b', 'cold');
    await sprite.restart();
    await next('js-watch-a', 'cold');
    await client.deleteSprite('js-watch-b');
    await next('js-watch-b', 'deleted');
  });

  test('110 restart: the disk stays, sessions end, exec works after', async () => {
    const sprite = await create('js-restart');
    await sprite.execFile('sh', ['-c', 'echo kept > file']);
    const running = await started(sprite, 'sleep', ['1000']);
    await session(sprite, 'sleep 1000');
    const result = await sprite.restart();
    assert.equal(result.spriteName, 'js-restart');
    assert.match(result.machineId, /^[0-9a-f]{32}$/);
    assert.notEqual(result.message ?? '', '');
    assert.notEqual(await running.exit, 0);
    assert.equal((await sprite.exec('cat file')).stdout, 'kept\n');
    assert.equal((await sprite.exec('cat /etc/machine-id')).stdout.trim(), result.machineId);
    assert.deepEqual(await sprite.listSessions(), []);
    await refused(client.restartSprite('js-none'), 404, 'not_found');
  });

  test('111 check: says how a sprite is, and does not wake it', async () => {
    const sprite = await create('js-check');
    const cold = await sprite.check();
    assert.equal(cold.spriteName, 'js-check');
    assert.notEqual(cold.spriteId ?? '', '');
    assert.equal(cold.status, 'hibernated');
    recent(cold.checkedAt);
    assert.equal(typeof cold.elapsed, 'number');
    assert.equal((await client.getSprite('js-check')).status, 'cold');
    await sprite.exec('true');
    await until('healthy', async () => (await client.checkSprite('js-check')).status === 'healthy'); // a slow one does not answer in time
    await refused(client.checkSprite('js-none'), 404, 'not_found');
  });

  test('126 not available: privileges, resources', async () => {
    const sprite = await create('js-without');
    const calls = {
      getPrivilegesPolicy: () => sprite.getPrivilegesPolicy(),
      updatePrivilegesPolicy: () => sprite.updatePrivilegesPolicy({ profile: 'minimal' }),
      deletePrivilegesPolicy: () => sprite.deletePrivilegesPolicy(),
      getResourcesPolicy: () => sprite.getResourcesPolicy(),
      updateResourcesPolicy: () => sprite.updateResourcesPolicy({ memory: { limitMB: 100 } }),
      deleteResourcesPolicy: () => sprite.deleteResourcesPolicy(),
    };
    for (const [name, call] of Object.entries(calls)) {
      const err = await call().then(() => assert.fail(`${name} succeeded`), (failure) => failure);
      assert.match(err.message, /501[^]*"error":"not_available"/, name);
    }
    assert.equal((await client.getSprite('js-without')).status, 'cold');
  });
});
