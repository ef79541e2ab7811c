// Tells of each test's end by a line of JSON.
export default async function* report(events) {
  for await (const { type, data } of events) {
    if (type === 'test:stdout' || type === 'test:stderr') {
      yield `${JSON.stringify({ output: data.message })}\n`;
    }
    if ((type !== 'test:pass' && type !== 'test:fail') || data.details.type === 'suite') continue;
    const error = data.details.error;
    yield `${JSON.stringify({
      name: data.name,
      ok: type === 'test:pass',
      skipped: data.skip !== undefined || data.todo !== undefined,
      seconds: data.details.duration_ms / 1000,
      error: error && `${error.cause?.stack ?? error.cause ?? error.stack}`,
    })}\n`;
  }
}
