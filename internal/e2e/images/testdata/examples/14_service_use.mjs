// Ask a service for a page.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const { stdout } = await sprite.exec('curl --silent --show-error --retry 100 --retry-connrefused http://localhost:8000/');
console.log(stdout);

// Output:
// Directory listing for /
