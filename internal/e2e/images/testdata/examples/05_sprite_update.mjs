// Change a sprite's labels and who may open its URL.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);

const { labels } = await client.updateSprite(process.env.SPRITE_NAME, { labels: ['kept'], urlSettings: { auth: 'public' } });
console.log(labels.join());

// Output:
// ^kept$
