// Ask the tools of a development machine for their versions.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const tools = ['git --version', 'curl --version', 'python --version', 'pip --version', 'node --version', 'npm --version', 'go version', 'gcc --version', 'make --version', 'rg --version', 'jq --version', 'sudo --version', 'ssh -V', 'less --version', 'vi --version', 'ps --version'];
for (const tool of tools) {
  const { stdout, stderr } = await sprite.exec(tool);
  console.log(`${tool}: ${(stdout || stderr).split('\n')[0]}`);
}

// Output:
// ^git --version: git version \d
// ^python --version: Python 3
// ^node --version: v\d
// ^go version: go version go1
// ^ps --version: 
