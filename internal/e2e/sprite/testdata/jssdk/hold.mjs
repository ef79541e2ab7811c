// Starts a command and holds its connection until this process is killed:
// hold.mjs SPRITE OPTIONS COMMAND…
import { client, opened } from './lib.mjs';

const [name, options, file, ...args] = process.argv.slice(2);
const cmd = client.sprite(name).spawn(file, args, JSON.parse(options));
cmd.stdout.on('data', () => console.log('output'));
await opened(cmd);
