// Drives a page in a sprite, as somebody who tests a web application there: waits for the
// service, presses the button, and takes screenshots. Its arguments are the URL and the options
// of launch, as JSON; NODE_PATH has playwright-core. No limit of Playwright's holds: the machine
// may be slow.
const { chromium } = require('playwright-core');

(async () => {
  const [url, options] = process.argv.slice(2);
  for (let up = false; !up; ) {
    up = await fetch(url).then(r => r.ok, () => new Promise(wait => setTimeout(wait, 100)));
  }
  const browser = await chromium.launch({ ...JSON.parse(options), timeout: 0 });
  const context = await browser.newContext({ viewport: { width: 320, height: 200 } });
  context.setDefaultTimeout(0);
  const page = await context.newPage();
  await page.goto(url);
  await page.getByRole('button').click();
  console.log(await page.title());
  await page.screenshot({ path: 'pressed', type: 'png', timeout: 0 }); // its content says what it is
  await page.screenshot({ path: 'pressed.jpg', timeout: 0 });
  await page.goto('chrome://sandbox');
  console.log(await page.innerText('body', { timeout: 0 }));
  await browser.close();
})().catch(e => {
  console.error(e);
  process.exit(1);
});
