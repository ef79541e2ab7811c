// Get a sprite.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);

const { name, status, labels } = await client.getSprite(process.env.SPRITE_NAME);
console.log(JSON.stringify({ name, status, labels }));

// Output:
// "name":"paint".*"labels":\["examples"\]
