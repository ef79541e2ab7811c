// Write and read files.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const fs = sprite.filesystem('/home/sprite');
await fs.mkdir('app', { recursive: true });
await fs.writeFile('app/data.json', JSON.stringify({ state: 'first' }));
console.log(await fs.readFile('app/data.json', 'utf8'), await fs.readdir('app'));

// Output:
// ^{"state":"first"} \[ \'data.json\' \]$
