import { randomBytes } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import { FilesystemError } from '@fly/sprites';
import { assert, cleanup, create, recent } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => {
  sprite = await create('js-files');
  await sprite.exec('true');
});

// fails checks that a call fails as Node's own would.
async function fails(call, code) {
  const err = await call.then(() => assert.fail(`it succeeded, without ${code}`), (failure) => failure);
  assert.ok(err instanceof FilesystemError, `${err.stack}`);
  assert.equal(err.code, code, err.message);
  return err;
}

const sh = async (script) => (await sprite.execFile('sh', ['-c', script])).stdout.trim();

describe('files', { concurrency: 4 }, () => {
  test('68 write and read: the same bytes', async () => {
    const fs = sprite.filesystem('/tmp/68');
    for (const [name, data] of Object.entries({
      text: Buffer.from('hellö\n'), empty: Buffer.alloc(0), binary: randomBytes(3 << 20), 'ä b+&?#%2f': Buffer.from([0, 255, 10]),
    })) {
      await fs.writeFile(name, data);
      assert.ok(data.equals(await fs.readFile(name, null)), name);
      assert.ok(data.equals(await fs.readFile(name)), name);
    }
    assert.equal(await fs.readFile('text', 'utf8'), 'hellö\n');
    await fs.writeFile('text', 'shorter');
    await fs.appendFile('text', ', longer');
    await fs.appendFile('new', 'first');
    assert.equal(await fs.readFile('text', 'utf8'), 'shorter, longer');
    assert.equal(await fs.readFile('new', 'utf8'), 'first');
    await fs.writeJSON('json', { a: [1, 'ä'] }, { spaces: 2 });
    assert.deepEqual(await fs.readJSON('json'), { a: [1, 'ä'] });
    assert.equal(await sh('cat /tmp/68/text'), 'shorter, longer');
    await sh('echo outside > /tmp/68/outside');
    assert.equal(await fs.readFile('outside', 'utf8'), 'outside\n');
  });

  test('69 mode: is applied', async () => {
    const fs = sprite.filesystem('/tmp/69');
    await fs.writeFile('default', '');
    await fs.writeFile('program', '#!/bin/sh\necho ran\n', { mode: 0o755 });
    await fs.writeFile('secret', '', { mode: 0o600 });
    assert.equal(await sh('cd /tmp/69; stat -c %a:%U default program secret; ./program'), '644:sprite\n755:sprite\n600:sprite\nran');
  });

  test('70 parents: are made', async () => {
    const fs = sprite.filesystem('/tmp/70');
    await fs.writeFile('a/b/c', 'deep');
    assert.equal(await sh('cat /tmp/70/a/b/c'), 'deep');
  });

  test('72 readdir: names and types', async () => {
    await sh('mkdir -p /tmp/72/sub/empty; cd /tmp/72; touch b.txt a.txt sub/c.go; ln -s a.txt link');
    const fs = sprite.filesystem('/tmp/72');
    assert.deepEqual((await fs.readdir('.')).sort(), ['a.txt', 'b.txt', 'link', 'sub']);
    const types = Object.fromEntries((await fs.readdir('/tmp/72', { withFileTypes: true }))
      .map((e) => [e.name, [e.isFile(), e.isDirectory(), e.isSymbolicLink()]]));
    assert.deepEqual(types, { 'a.txt': [true, false, false], 'b.txt': [true, false, false], link: [false, false, true], sub: [false, true, false] });
    assert.deepEqual(await fs.readdir('sub/empty'), []);
  });

  test('73 stat: of a file, and of a folder what the SDK makes of it', async () => {
    await sh('mkdir -p /tmp/73/sub /tmp/73/empty; cd /tmp/73; printf 12345 > sub/file; chmod 640 sub/file');
    const fs = sprite.filesystem('/tmp/73');
    const file = await fs.stat('sub/file');
    assert.deepEqual([file.size, file.mode & 0o7777, file.isFile(), file.isDirectory()], [5, 0o640, true, false]);
    recent(file.mtime);
    assert.equal((await fs.stat('sub')).size, 5); // it takes the first of the list
    await fails(fs.stat('empty'), 'ENOENT');
    assert.deepEqual(await Promise.all(['sub/file', 'sub', 'empty', 'none'].map((p) => fs.exists(p))), [true, true, false, false]);
  });

  test('74 missing: ENOENT', async () => {
    const fs = sprite.filesystem('/tmp/74');
    for (const call of [
      () => fs.readFile('none'), () => fs.readdir('none'), () => fs.stat('none'), () => fs.rm('none'), () => fs.rename('none', 'x'),
      () => fs.copyFile('none', 'x'), () => fs.chmod('none', 0o644), () => fs.chown('none', { uid: 0, asRoot: true }),
    ]) await fails(call(), 'ENOENT');
    const err = await fails(fs.readFile('none'), 'ENOENT');
    assert.match(err.path, /none$/);
    await fs.rm('none', { force: true });
  });

  test('75 rm: a full folder only with recursive', async () => {
    const fs = sprite.filesystem('/tmp/75');
    await fs.writeFile('dir/file', '');
    await fails(fs.rm('dir'), 'ENOTEMPTY');
    await fs.rm('dir/file');
    await fs.rm('dir');
    await fs.writeFile('dir/sub/file', '');
    await fs.rm('dir', { recursive: true });
    assert.equal(await fs.exists('/tmp/75/dir/sub'), false);
    await sh('mkdir -p /tmp/75');
    assert.equal(await sh('ls /tmp/75'), '');
  });

  test('76 rename, copyFile, chmod', async () => {
    const fs = sprite.filesystem('/tmp/76');
    await fs.writeFile('a/one', '1', { mode: 0o700 });
    await fs.writeFile('a/b/two', '2');
    await fs.copyFile('a/one', 'copy');
    await fs.copyFile('a', 'tree', { recursive: true, preserveAttrs: true });
    await fails(fs.copyFile('a', 'no', { recursive: false }), 'EISDIR');
    await fs.rename('a/one', 'a/uno');
    await fs.rename('a', 'z');
    assert.equal(await sh('cd /tmp/76; find . -type f | sort | xargs stat -c %n:%a'), './copy:700\n./tree/b/two:644\n./tree/one:700\n./z/b/two:644\n./z/uno:700');
    await fs.chmod('copy', 0o4755);
    await fs.chmod('tree', 0o750, { recursive: true });
    assert.equal(await sh('cd /tmp/76; find copy tree | sort | xargs stat -c %a'), '4755\n750\n750\n750\n750');
    assert.equal((await fs.stat('copy')).mode & 0o7777, 0o4755);
  });

  test('77 workingDir: relative paths are below it', async () => {
    await sprite.filesystem('/home/sprite').writeFile('77/a', 'home');
    assert.equal(await sprite.filesystem('/home').readFile('sprite/77/a', 'utf8'), 'home');
    assert.equal(await sprite.filesystem().readFile('home/sprite/77/a', 'utf8'), 'home');
    assert.equal(await sprite.filesystem('/tmp').readFile('/home/sprite/77/../77/a', 'utf8'), 'home');
  });

  test('78 escape: no path leads out', async () => {
    const fs = sprite.filesystem('/tmp');
    await sh('ln -s / /tmp/78; ln -s ../../../../../../../.. /tmp/78-up');
    for (const path of ['../../../../../etc/hostname', '/../../etc/hostname', '78/etc/hostname', '78-up/etc/hostname']) {
      assert.equal((await fs.readFile(path, 'utf8')).trim(), 'js-files', path);
    }
  });

  test('74 errors: codes of Node', async () => {
    const fs = sprite.filesystem('/tmp/79');
    await fs.writeFile('file', '');
    await fs.writeFile('dir/file', '');
    await fails(fs.readFile('dir'), 'EISDIR');
    await fails(fs.writeFile('dir', ''), 'EISDIR');
    await fails(fs.writeFile('file/below', ''), 'ENOTDIR');
    await fails(fs.readdir('file/below'), 'ENOTDIR');
    await fails(fs.rename('file', 'dir'), 'EEXIST');
    await fails(fs.writeFile('/etc/denied', ''), 'EACCES');
    await fails(fs.rm('/etc/passwd'), 'EACCES');
    await fails(fs.chmod('/etc/passwd', 0o666), 'EPERM');
    await fails(fs.chown('file', { uid: 0 }), 'EPERM');
    await fails(fs.rm('/', { recursive: true, asRoot: true }), 'EINVAL');
  });

  test('120 mkdir: leaves an empty folder; recursive and pattern list', async () => {
    const fs = sprite.filesystem('/tmp/120');
    for (const [path, options] of [['one', undefined], ['two', { recursive: true }], ['x/y/z', { recursive: true }], ['moded', { mode: 0o700 }]]) {
      await fs.mkdir(path, options);
      assert.deepEqual(await fs.readdir(path), [], path);
      assert.equal(await sh(`stat -c %F /tmp/120/${path}`), 'directory');
    }
    await sh('cd /tmp/120; touch a.go x/b.go x/y/z/c.go x/y/d.txt');
    assert.deepEqual((await fs.readdir('.', { recursive: true })).sort(), ['a.go', 'b.go', 'c.go', 'd.txt', 'moded', 'one', 'two', 'x', 'y', 'z']);
    assert.deepEqual((await fs.readdir('.', { recursive: true, pattern: '*.go' })).sort(), ['a.go', 'b.go', 'c.go']);
    assert.deepEqual(await fs.readdir('.', { pattern: '*.go' }), ['a.go']);
    assert.deepEqual(await fs.readdir('.', { pattern: '*.none' }), []);
  });

  test('121 chown: numbers and names', async () => {
    const fs = sprite.filesystem('/tmp/121');
    await fs.writeFile('dir/file', '');
    const owner = (path) => sh(`stat -c %U:%G /tmp/121/${path}`);
    await fs.chown('dir/file', { uid: 0, gid: 0, asRoot: true });
    assert.equal(await owner('dir/file'), 'root:root');
    await fs.chown('dir/file', { uid: 'sprite', asRoot: true });
    assert.equal(await owner('dir/file'), 'sprite:root');
    await fs.chown('dir/file', { gid: 'sprite', asRoot: true });
    assert.equal(await owner('dir/file'), 'sprite:sprite');
    await fs.chown('dir', { uid: 'root', gid: 'root', recursive: true, asRoot: true });
    assert.equal(await owner('dir/file'), 'root:root');
    await fails(fs.writeFile('dir/file', ''), 'EACCES');
    await fails(fs.chown('dir', { uid: 'nobody-here', asRoot: true }), 'EINVAL');
    await fs.rm('dir', { recursive: true, asRoot: true });
    assert.equal(await sh('ls /tmp/121'), '');
  });
});
