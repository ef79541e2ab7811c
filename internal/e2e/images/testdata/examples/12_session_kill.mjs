// Kill a session.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const sessions = await sprite.listSessions();
const { id } = sessions.find(({ command }) => command.includes('sleep'));
for await (const { type } of await sprite.killSession(id)) console.log(type);

// Output:
// ^complete$
