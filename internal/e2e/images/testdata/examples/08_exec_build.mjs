// Build programs with the tools that are there.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const fs = sprite.filesystem('/home/sprite');
await fs.writeFile('hello.c', '#include <stdio.h>\nint main(void) { puts("hello from C"); }\n');
await fs.writeFile('hello.go', 'package main\n\nfunc main() { println("hello from Go") }\n');
await fs.writeFile('hello.js', 'console.log("hello from Node")\n');
for (const script of [
  'gcc -o hello hello.c && ./hello',
  'go run hello.go 2>&1',
  'node hello.js',
  'python -m venv env && env/bin/python -c "import pip; print(1, pip.__name__)"',
  'git init -q repo && git -C repo status --short --branch',
  'sudo -n id -un',
]) {
  const { stdout } = await sprite.execFile('bash', ['-c', script]);
  process.stdout.write(stdout);
}

// Output:
// ^hello from C$
// ^hello from Go$
// ^hello from Node$
// ^1 pip$
// ^## No commits yet on 
// ^root$
