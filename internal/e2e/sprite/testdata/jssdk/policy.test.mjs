import { after, before, describe, test } from 'node:test';
import { assert, cleanup, client, create } from './lib.mjs';

let sprite;
after(cleanup);
before(async () => { sprite = await create('js-policy'); });

// asked is a question to the sprite's resolver; it prints the answer's code.
const asked = `
import socket, struct, sys
server = [l.split()[1] for l in open('/etc/resolv.conf') if l.startswith('nameserver')][0]
name = b''.join(bytes([len(p)]) + p.encode() for p in sys.argv[1].split('.'))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(600)
s.sendto(struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + name + b'\\0\\0\\1\\0\\1', (server, 53))
print(s.recv(512)[3] & 15)
`;
const lookupRefused = async (name) => (await sprite.execFile('python3', ['-c', asked, name])).stdout.trim() === '5';
const shown = async () => JSON.parse((await sprite.execFile('cat', ['/.sprite/policy/network.json'])).stdout);

describe('network policy', { concurrency: false }, () => {
  test('100 policy: none is no rules; what was set comes back, and is shown inside', async () => {
    assert.deepEqual(await sprite.getNetworkPolicy(), { rules: [] });
    assert.deepEqual(await shown(), { rules: [] });
    const policy = { rules: [{ include: 'defaults' }, { domain: 'api.example.org', action: 'allow' }, { domain: '*', action: 'deny' }] };
    assert.equal(await sprite.updateNetworkPolicy(policy), undefined);
    assert.deepEqual(await sprite.getNetworkPolicy(), policy);
    assert.deepEqual(await shown(), policy);
    await assert.rejects(client.sprite('js-none').getNetworkPolicy(), /status 404[^]*"error":"not_found"/);
    await assert.rejects(client.sprite('js-none').updateNetworkPolicy(policy), /status 404[^]*"error":"not_found"/);
  });

  test('101 policy: a malformed one is refused, and the old one stays', async () => {
    const before = await sprite.getNetworkPolicy();
    for (const bad of [
      {}, { rules: null }, { rules: [{}] }, { rules: [{ domain: 'a.example', include: 'defaults', action: 'allow' }] }, { rules: [{ domain: 'a.example' }] },
      { rules: [{ domain: 'a.example', action: 'maybe' }] }, { rules: [{ include: 'nosuch' }] }, { rules: [{ domain: 'a.example', action: 'allow', colour: 'red' }] },
    ]) {
      await assert.rejects(sprite.updateNetworkPolicy(bad), /^Error: Invalid policy: /, JSON.stringify(bad));
    }
    assert.deepEqual(await sprite.getNetworkPolicy(), before);
    assert.deepEqual(await shown(), before);
  });

  test('102 policy: the most specific rule decides, whatever the order', async () => {
    const rules = [
      { domain: '*', action: 'allow' }, { domain: '*.example.org', action: 'deny' },
      { domain: '*.cdn.example.org', action: 'allow' }, { domain: 'evil.cdn.example.org', action: 'deny' },
    ];
    for (const order of [rules, rules.toReversed()]) {
      await sprite.updateNetworkPolicy({ rules: order });
      for (const [name, want] of [['www.example.net', false], ['www.example.org', true], ['a.cdn.example.org', false], ['evil.cdn.example.org', true]]) {
        assert.equal(await lookupRefused(name), want, name);
      }
    }
    await sprite.updateNetworkPolicy({ rules: [{ domain: '*.example.org', action: 'allow' }] });
    assert.equal(await lookupRefused('example.org'), true);
    await sprite.updateNetworkPolicy({ rules: [] });
    assert.equal(await lookupRefused('example.org'), false);
  });
});
