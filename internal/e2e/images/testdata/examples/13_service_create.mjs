// Serve the files of a folder over HTTP.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const events = await sprite.createService('web', { cmd: 'python', args: ['-m', 'http.server', '8000'], httpPort: 8000 });
for await (const { type } of events) console.log(type);

// Output:
// ^complete$
