// What takes more than a minute: make soak runs it.
import { after, test } from 'node:test';
import { assert, cleanup, create, started } from './lib.mjs';

after(cleanup);

test('114 silence: 62 s are survived, TTY and not', async () => {
  const sprite = await create('js-soak');
  await Promise.all([true, false].map(async (tty) => {
    const run = await started(sprite, 'sh', ['-c', 'sleep 62; echo awake'], { tty });
    assert.equal(await run.exit, 0);
    assert.equal(run.stdout.trim(), 'awake');
  }));
});
