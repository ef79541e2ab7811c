// Show what a service has logged.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for await (const { data } of await sprite.getServiceLogs('web', { lines: 100, duration: '100ms' })) console.log(data);

// Output:
// "GET / HTTP/1.1" 200
