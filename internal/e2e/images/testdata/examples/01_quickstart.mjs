// A first program: a sprite that runs Python.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = await client.createSprite('first');
const { stdout } = await sprite.execFile('python', ['-c', 'print(2 + 2)']);
console.log(stdout.trim());
await sprite.delete();

// Output:
// ^4$
