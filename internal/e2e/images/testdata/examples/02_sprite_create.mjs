// Create a sprite with a label.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);

const made = await client.createSprite(process.env.SPRITE_NAME, { labels: ['examples'] });
console.log(`made ${made.name}`);

// Output:
// ^made paint$
