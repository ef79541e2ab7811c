// List all sprites.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);

for (const { name } of await client.listAllSprites()) console.log(name);

// Output:
// ^paint$
