// Show what a sprite may reach.

import { SpritesClient } from '@fly/sprites';

const client = new SpritesClient(process.env.SPRITES_TOKEN);
const sprite = client.sprite(process.env.SPRITE_NAME);

const { rules } = await sprite.getNetworkPolicy();
for (const { domain, action } of rules) console.log(action, domain);

// Output:
// ^allow api.example.org$
// ^allow \*.example.com$
