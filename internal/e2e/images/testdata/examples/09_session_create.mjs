// Start a session, and leave it running.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const session = sprite.createSession('bash', ['-c', 'echo ready; exec sleep 1000']);
session.stdout.on('data', (data) => {
  if (!`${data}`.includes('ready')) return;
  console.log('left');
  process.exit(0);
});

// Output:
// ^left$
