// The same as main.go: it makes a profile, starts a job, shows each step, answers what the agent asks, and
// removes all that it made. Node runs it, with the package ws. Its arguments are two files: the settings
// of the profile as JSON, and the plan.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import WebSocket from 'ws';

const url = process.env.COVE_URL;
const headers = { Authorization: `Bearer ${process.env.COVE_TOKEN}` };
const git = (...args) => execFileSync('git', args);

async function call(method, path, body) {
  const answer = await fetch(url + path, { method, headers, body });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path}: ${text}`);
  return text ? JSON.parse(text) : null;
}

const [profile, plan] = process.argv.slice(2).map((file) => readFileSync(file, 'utf8'));
await call('PUT', '/v1/profiles/example', profile);
let job;
try {
  const commit = git('rev-parse', 'HEAD').toString().trim();
  git('update-ref', 'refs/cove/base', commit);
  const bundle = git('bundle', 'create', '-q', '-', 'refs/cove/base');
  job = await call('POST', '/v1/jobs', JSON.stringify({ profile: 'example', plan, base: commit }));
  await call('PUT', `/v1/sprites/${job.sprite}/fs/write?path=${job.upload}`, bundle);
  const digest = createHash('sha256').update(bundle).digest('hex');
  await call('POST', `/v1/jobs/${job.id}/start`, JSON.stringify({ bundle_sha256: digest, bundle_size: bundle.length }));

  const socket = new WebSocket(url.replace(/^http/, 'ws') + '/v1/ws', { headers });
  await once(socket, 'open');
  const ask = (method, params) => socket.send(JSON.stringify({ id: 1, method, params }));
  ask('subscribe', { topics: ['jobs', 'steps'], job: job.id });
  let asked;
  await new Promise((resolve, reject) => {
    socket.on('close', () => reject(new Error('the connection is lost')));
    socket.on('message', (text) => {
      const m = JSON.parse(text);
      for (const { snapshot, step, text } of m.steps ?? []) {
        if (text) process.stdout.write(text);
        for (const s of snapshot?.steps ?? (step ? [step] : [])) console.log('==', s.key, s.state, s.error ?? '');
      }
      const question = m.job?.question;
      if (m.error) reject(new Error(m.error.message));
      if (m.job?.outcome) resolve(console.log('==', m.job.state, m.job.outcome.reason));
      if (!question || question.id === asked) return;
      asked = question.id;
      console.log('??', question.title);
      ask('jobs.answer', { id: job.id, question: asked, option: question.options.find((o) => o.kind === 'allow_once').id });
    });
  });
  socket.close();
} finally {
  if (job) await call('DELETE', `/v1/jobs/${job.id}?force=true`); // and its sprite
  await call('DELETE', '/v1/profiles/example');
}
