// Sprites over an image, which a server of cove takes in the configuration of a new sprite.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);

const over = await client.createSprite('over', { config: { image: 'small:1' } });
const short = await client.createSprite('short', { image: 'small:1', ramMB: 256 });
for (const sprite of [over, short]) {
  const { stdout } = await sprite.execFile('cat', ['/etc/os-release']);
  console.log(`${sprite.name} ${stdout.trim()}`);
}

const fs = over.filesystem('/srv');
const shell = over.spawn('sh', ['-c', 'id -un; echo $COLOUR']);
shell.stdout.pipe(process.stdout);
await shell.wait();
await over.filesystem('/home/sprite').writeFile('kept', 'one');
for await (const message of await over.createCheckpoint('first')) if (message.type === 'complete') console.log('checkpoint');
await over.filesystem('/home/sprite').writeFile('kept', 'two');
for await (const message of await over.restoreCheckpoint('v1')) if (message.type === 'complete') console.log('restored');
console.log(`${await over.filesystem('/home/sprite').readFile('kept', 'utf8')} and ${await fs.readFile('page', 'utf8')}`);

try {
  await client.createSprite('none', { config: { image: 'localhost:1/none:1' } });
} catch (err) {
  console.log(`refused: ${err.message}`);
}
await over.delete();
await short.delete();

// Output:
// ^over ID=small$
// ^short ID=small$
// ^sprite$
// ^blue$
// ^checkpoint$
// ^restored$
// ^one and a page$
// ^refused: .*localhost:1/none:1
