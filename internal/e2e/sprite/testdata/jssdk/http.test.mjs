import { after, before, describe, test } from 'node:test';
import { assert, cleanup, client, create, lastResort, refused } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => {
  sprite = await create('js-http');
  await sprite.exec('true');
});

describe('exec over HTTP', () => {
  // Its frames have no length, so what the network joins or splits is lost; the
  // SDK says so itself. cove keeps them apart in time, which takes a reader that has its turn
  // in between: on an idle machine 8 of 10 runs are right, and a busy one makes more of them.
  test('116 execFileHTTP: right in 8 runs, both streams, code, input, 20 kB', async () => {
    const cases = {
      streams: async () => {
        const r = await sprite.execFileHTTP('sh', ['-c', 'echo out; echo err >&2']);
        assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['out\n', 'err\n', 0]);
      },
      code: async () => {
        const err = await sprite.execFileHTTP('sh', ['-c', 'echo out; exit 42']).then(() => assert.fail('it succeeded'), (e) => e);
        assert.deepEqual([err.exitCode, err.stdout], [42, 'out\n']);
      },
      input: async () => {
        const r = await sprite.execFileHTTP('cat', [], { input: 'a\nb\n', cwd: '/tmp', env: { A: 'b' } });
        assert.equal(r.stdout, 'a\nb\n');
      },
      'no input': async () => {
        assert.equal((await sprite.execFileHTTP('cat', [], { input: '' })).stdout, '');
      },
      '20 kB': async () => {
        const r = await sprite.execFileHTTP('sh', ['-c', 'head -c 20000 /dev/zero | tr "\\0" x']);
        assert.equal(r.stdout, 'x'.repeat(20_000));
      },
    };
    const right = {};
    const end = Date.now() + lastResort;
    for (const [name, run] of Object.entries(cases)) {
      right[name] = 0;
      for (let i = 0; right[name] < 8 && Date.now() < end; i++) await run().then(() => { right[name]++; }, (err) => console.log(`${name}: ${err.message}`));
    }
    console.log(JSON.stringify(right));
    for (const [name, n] of Object.entries(right)) assert.ok(n >= 8, `${name}: ${n} right`);
  });

  test('49 execFileHTTP: refusals', async () => {
    await refused(client.sprite('js-none').execFileHTTP('true'), 404, 'not_found');
    await assert.rejects(sprite.execFileHTTP('sleep', ['1000'], { timeout: 300 }));
    await assert.rejects(sprite.execFileHTTP('sleep', ['1000'], { signal: AbortSignal.timeout(300) }));
  });
});
