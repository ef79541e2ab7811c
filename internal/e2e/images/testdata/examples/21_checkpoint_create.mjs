// Make a checkpoint.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

for await (const { type } of await sprite.createCheckpoint('before the change')) console.log(type);
const { stdout } = await sprite.execFile('bash', ['-c', 'echo changed >app/data.json; cat app/data.json']);
process.stdout.write(stdout);

// Output:
// ^complete$
// ^changed$
