// Get a service.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const { state } = await sprite.getService('web');
console.log(state.status);

// Output:
// ^running$
