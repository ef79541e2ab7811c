// Let a sprite reach two names, and nothing else.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

await sprite.updateNetworkPolicy({ rules: [{ domain: 'api.example.org', action: 'allow' }, { domain: '*.example.com', action: 'allow' }] });
const refused = await sprite.execFile('python', ['-c', 'import socket; socket.create_connection(("192.0.2.1", 80))']).catch((err) => err);
console.log(`other addresses: exit code ${refused.exitCode}`);

// Output:
// ^other addresses: exit code 1$
