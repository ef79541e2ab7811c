// Runs one command and ends when Node has nothing left to wait for, and says when
// the command had ended: once.mjs SPRITE
import { client } from './lib.mjs';

const { stdout } = await client.sprite(process.argv[2]).execFile('echo', ['once']);
process.stdout.write(`${stdout.trim()} ${Date.now()}\n`);
