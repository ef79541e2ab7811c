// Delete a sprite.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);

await client.deleteSprite(process.env.SPRITE_NAME);
console.log(await client.getSprite(process.env.SPRITE_NAME).catch(() => 'gone'));

// Output:
// ^gone$
