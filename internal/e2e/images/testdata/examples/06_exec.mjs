// Run a command, and a script of Python with input.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const { stdout } = await sprite.execFile('echo', ['hello', 'world']);
process.stdout.write(stdout);

const command = sprite.spawn('python', ['-c', 'import sys; print(sys.stdin.read().upper()); sys.exit(3)']);
command.stdout.pipe(process.stdout);
await new Promise((resolve) => command.on('spawn', resolve));
command.stdin.end('through standard input');
console.log(`exit code ${await command.wait()}`);

// Output:
// ^hello world$
// ^THROUGH STANDARD INPUT$
// ^exit code 3$
