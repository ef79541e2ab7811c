// List the checkpoints.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for (const { id, comment } of await sprite.listCheckpoints()) console.log(`${id}: ${comment}`);

// Output:
// ^v1: before the change$
