// Stop a service.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for await (const { type } of await sprite.stopService('web')) console.log(type);

// Output:
// ^complete$
