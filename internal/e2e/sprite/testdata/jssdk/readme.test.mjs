// A program as somebody would write it who has read the SDK's README and nothing
// else: one sprite, and all that is offered of it, one after another.

import { createServer } from 'node:net';
import { after, test } from 'node:test';
import { SpritesClient, ExecError } from '@fly/sprites';
import { assert, until } from './lib.mjs';

const client = new SpritesClient(process.env.COVE_TOKEN, { baseURL: process.env.COVE_URL });

after(async () => { await client.deleteSprite('js-readme').catch(() => {}); });

test('14 readme: a new user\'s program', async () => {
  const sprite = await client.createSprite('js-readme', {
    config: { ramMB: 512, cpus: 1, region: 'ord' },
    urlSettings: { auth: 'sprite', privateAccess: 'admins' },
    labels: ['development'],
    waitForCapacity: true,
    runtime: 'dev',
  });
  const { stdout } = await sprite.exec('ls -la');
  assert.match(stdout, /^total /);
  const failed = await sprite.exec('false').catch((err) => err);
  assert.ok(failed instanceof ExecError);
  assert.equal(failed.exitCode, 1);

  // A session that is left, and joined again.
  const session = sprite.createSession('bash');
  session.on('error', () => {}); // its connection is about to drop
  session.stdout.on('data', () => {});
  session.wait().catch(() => {});
  await new Promise((resolve) => session.on('spawn', resolve));
  session.stdin.write('echo left $((6*7))\n');
  const id = await until('the session', async () => (await sprite.listSessions()).at(0)?.id);
  (session.ws?.ws ?? session.wsCmd?.ws ?? session.stdin).destroy?.();
  const attached = sprite.attachSession(id);
  let shown = '';
  attached.stdout.on('data', (data) => { shown += data; });
  await until('what it showed', () => shown.includes('left 42'));
  attached.stdin.write('exit 7\n');
  await attached.wait().catch(() => {});

  const fs = sprite.filesystem();
  await fs.mkdir('/home/sprite/app', { recursive: true });
  await fs.writeFile('/home/sprite/app/index.html', '<h1>hello</h1>');
  assert.equal(await fs.readFile('/home/sprite/app/index.html', 'utf8'), '<h1>hello</h1>');

  const logs = await sprite.createService('web', {
    cmd: 'python3', args: ['-m', 'http.server', '3000'], dir: '/home/sprite/app', httpPort: 3000,
  }, '500ms');
  await logs.processAll(() => {});
  await until('the service', async () => (await sprite.getService('web')).state.status === 'running');

  const free = await new Promise((resolve) => {
    const server = createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
  const proxy = await sprite.proxyPort(free, 3000);
  const page = await until('the page', () => fetch(`http://localhost:${free}/`).then((r) => r.text()).catch(() => null));
  assert.equal(page, '<h1>hello</h1>');
  proxy.close();

  // What this server does not have it says, and does not make up.
  await assert.rejects(sprite.getPrivilegesPolicy(), /501|not_available|does not have/);
  await sprite.delete();
  await assert.rejects(client.getSprite('js-readme'));
});
