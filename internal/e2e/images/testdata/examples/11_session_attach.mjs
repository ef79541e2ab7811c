// Attach to a session, and see what it has shown before.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const sessions = await sprite.listSessions();
const { id } = sessions.find(({ command }) => command.includes('sleep'));
const session = sprite.attachSession(id);
session.on('error', () => {}); // the connection is dropped below
session.stdout.on('data', (data) => {
  process.stdout.write(data);
  if (`${data}`.includes('ready')) process.exit(0);
});

// Output:
// ready
