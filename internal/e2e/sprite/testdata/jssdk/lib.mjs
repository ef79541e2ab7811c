// What the tests share. Each test's name begins with the number of the statement
// of the protocol that it shows.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { SpritesClient } from '@fly/sprites';

const { COVE_URL: url, COVE_TOKEN: token } = process.env;

export function connect(options = {}, secret = token) {
  return new SpritesClient(secret, { baseURL: url, ...options });
}

export const client = connect();

const created = [];

// create makes a sprite that cleanup deletes.
export async function create(name, options = {}) {
  created.push(name);
  return client.createSprite(name, options);
}

// cleanup is for after().
export async function cleanup() {
  for (const name of created) {
    await client.deleteSprite(name).catch((err) => { if (err.statusCode !== 404) throw err; });
  }
}

// started returns a running command and what it has printed so far.
export async function started(sprite, file, args = [], options = {}) {
  return opened(sprite.spawn(file, args, options));
}

// opened waits for a command's connection, before which the SDK loses input.
export async function opened(cmd) {
  const out = { cmd, stdout: '', stderr: '', messages: [] };
  cmd.stdout.on('data', (data) => { out.stdout += data; });
  cmd.stderr.on('data', (data) => { out.stderr += data; });
  cmd.on('message', (message) => out.messages.push(message));
  out.exit = cmd.wait();
  out.exit.catch(() => {}); // an error is told more than once
  await new Promise((resolve, reject) => cmd.on('spawn', resolve).on('error', reject));
  return out;
}

// lastResort keeps a broken test from hanging for ever, in milliseconds. No test passes or
// fails because something took long.
export const lastResort = 600_000;

// until polls for what is on its way, and returns what it found.
export async function until(what, find) {
  for (const end = Date.now() + lastResort; ;) {
    const found = await find();
    if (found) return found;
    assert.ok(Date.now() < end, `${what}: not within ${lastResort} ms`);
    await sleep(25);
  }
}

// session finds the session of a command by a part of its command line.
export function session(sprite, mark) {
  return until(`a session of ${mark}`, async () => (await sprite.listSessions()).find((s) => s.command.includes(mark)));
}

// elsewhere starts a command from another process, which is then killed: to the
// server its connection just drops. It returns the session.
export async function elsewhere(sprite, mark, script, options = {}) {
  const child = spawn(process.execPath, [
    fileURLToPath(new URL('hold.mjs', import.meta.url)), sprite.name, JSON.stringify(options), 'sh', '-c', script, mark,
  ], { stdio: ['ignore', 'pipe', 'inherit'] });
  await once(child.stdout, 'data');
  const found = await session(sprite, mark);
  child.kill('SIGKILL');
  await once(child, 'close');
  return found;
}

// recent checks that a time is about now, and not that of another time zone.
export function recent(time) {
  assert.ok(Math.abs(Date.now() - time.getTime()) < 1_200_000, `${time}`);
}

// refused checks that a call fails with an APIError.
export async function refused(call, status, code) {
  const err = await call.then(() => assert.fail('it succeeded'), (failure) => failure);
  assert.equal(err.constructor.name, 'APIError', err.stack);
  assert.equal(err.statusCode, status, err.message);
  assert.equal(err.errorCode, code);
  assert.equal(typeof err.message, 'string');
  assert.notEqual(err.message, '');
  return err;
}

export { assert, sleep };
