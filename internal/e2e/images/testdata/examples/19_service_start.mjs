// Start a service again.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for await (const { type } of await sprite.startService('web')) console.log(type);
const { stdout } = await sprite.exec('curl --silent --show-error --retry 100 --retry-connrefused http://localhost:8000/');
console.log(stdout);

// Output:
// ^complete$
// Directory listing for /
