// Get a checkpoint.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const { id, comment } = await sprite.getCheckpoint('v1');
console.log(id, comment);

// Output:
// ^v1 before the change$
