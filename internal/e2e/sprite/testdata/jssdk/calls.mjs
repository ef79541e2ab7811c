// Makes the calls that BenchmarkCalls asks for, a line of JSON each, and answers with
// how long each took, in milliseconds.

import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { SpritesClient } from '@fly/sprites';

const { COVE_URL: url, COVE_TOKEN: token } = process.env;
const client = new SpritesClient(token, { baseURL: url });
const sprite = client.sprite('paint');
const fs = sprite.filesystem('/tmp');

// spawned runs a command, with input if there is some, and counts its output.
async function spawned(file, args, options = {}, input = null) {
  const cmd = sprite.spawn(file, args, options);
  let got = 0;
  cmd.stdout.on('data', (data) => { got += data.length; });
  cmd.stderr.on('data', () => {});
  const end = cmd.wait();
  await once(cmd, 'spawn'); // what is written before is lost
  if (input) cmd.stdin.end(input);
  const code = await end;
  if (code !== 0) throw new Error(`exit ${code}`);
  return got;
}

// The SDK takes a read for a frame: without pauses, as at the floor, it can't read.
const unframed = (err) => { if (!/frame|exit|stream/i.test(err.message)) throw err; };

const calls = {
  create: (_, i) => client.createSprite(`ja-u${i}`),
  get: () => client.getSprite('paint'),
  update: () => client.updateSprite('paint', { labels: ['a'] }),
  delete: (_, i) => client.deleteSprite(`jd-u${i}`),
  list: () => client.listAllSprites('list'),
  readdir: (n) => fs.readdir(`/tmp/dir${n}`),
  read: (n) => fs.readFile(`/tmp/read${n}`, null),
  write: (n) => fs.writeFile('/tmp/write', Buffer.alloc(n)),
  'post-out': (n) => sprite.execFileHTTP('head', ['-c', `${n}`, '/dev/zero'], { encoding: 'buffer' }).catch(unframed),
  'post-in': (n) => sprite.execFileHTTP('sh', ['-c', 'cat >/dev/null'], { input: Buffer.alloc(n) }).catch(unframed),
  exec: () => spawned('true', []),
  tty: () => spawned('true', [], { tty: true }),
  'exec-out': (n) => spawned('head', ['-c', `${n}`, '/dev/zero']),
  'exec-in': (n) => spawned('sh', ['-c', 'cat >/dev/null'], {}, Buffer.alloc(n)),
  services: () => sprite.listServices(),
  'service-put': async () => {
    const stream = await sprite.createService('js', { cmd: 'sleep', args: ['1000'] }, '0s');
    await stream.processAll(() => {});
  },
  'policy-get': () => sprite.getNetworkPolicy(),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { name, size, i } = JSON.parse(line);
  const answer = {};
  const begun = performance.now();
  try {
    await calls[name](size, i);
  } catch (err) {
    answer.error = `${name}: ${err.stack}`;
  }
  answer.took = performance.now() - begun;
  console.log(JSON.stringify(answer));
}
process.exit(0);
