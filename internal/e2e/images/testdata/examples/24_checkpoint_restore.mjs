// Restore a checkpoint.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for await (const { type } of await sprite.restoreCheckpoint('v1')) console.log(type);
const { stdout } = await sprite.exec('cat /home/sprite/app/data.json');
console.log(stdout);

// Output:
// ^complete$
// ^{"state":"first"}$
