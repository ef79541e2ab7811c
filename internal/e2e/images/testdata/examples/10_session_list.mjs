// List the sessions.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for (const { id, command } of await sprite.listSessions()) console.log(`${id}: ${command}`);

// Output:
// ^.+: .*sleep
