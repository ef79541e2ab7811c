// List the services.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for (const { name, cmd, args } of await sprite.listServices()) console.log(name, cmd, ...args);

// Output:
// ^web python -m http.server 8000$
