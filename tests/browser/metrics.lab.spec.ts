/** Metrics in JupyterLab: in a tab, with another run laid over them, and with the user's settings. */

import { readFileSync } from 'node:fs';
import { expect, type Locator, type Page } from '@playwright/test';
import { hover, plot, tip } from './chart';
import {
  command,
  endKernels,
  kernelIs,
  LOAD_WITHOUT_TORCH,
  metrics,
  open,
  tellIfFailed,
  test,
  upload,
  violations
} from './jupyter';
import { seconds } from './limits';

/** Two jobs that log 20 values on each rank. */
const CELLS = [
  LOAD_WITHOUT_TORCH,
  ...[1, 2].map(
    scale => `%%distributed -np 2 --backend none
import nbdist
for step in range(20):
    nbdist.log({"loss": ${scale} / (1 + step) + rank}, step=step)`
  )
];

test.afterEach(async ({ page, request }) => {
  await tellIfFailed(page);
  await page.goto('about:blank');
  await endKernels(request);
});

async function run(page: Page, name: string): Promise<Locator> {
  await upload(page, name, CELLS);
  await open(page, name);
  await command(page, 'notebook:run-all-cells');
  const outputs = metrics(page);
  await expect(outputs).toHaveCount(2, { timeout: seconds(90) });
  await kernelIs(page, 'idle');
  return outputs;
}

test('metrics of two jobs in JupyterLab', async ({ page }) => {
  const outputs = await run(page, 'jobs.ipynb');
  await test.step('charts follow the settings, and pins are kept there', () =>
    expectSettings(page, outputs));
  await command(page, 'application:close'); // the settings
  await expect(outputs.first()).toBeVisible();
  await test.step('metrics in a tab, with another run, after a reload, too', () =>
    expectTab(page, outputs));
});

async function expectSettings(page: Page, outputs: Locator): Promise<void> {
  const root = outputs.first();
  await root.getByRole('figure').hover();
  const pins = outputs.getByRole('button', { name: 'Pin loss' });
  await pins.first().click();
  await expect(pins.nth(1)).toHaveAttribute('aria-pressed', 'true');
  await expect.poll(() => settings(page)).toContain('"loss"');
  await pins.first().click();
  await expect.poll(() => settings(page)).not.toContain('"loss"');

  // The tab of the settings hides the notebook, but its charts still exist.
  const log = page.locator('.nbdist-metrics button', {
    hasText: 'Log scale'
  });
  await expect(log.first()).toHaveAttribute('aria-pressed', 'false');
  await command(page, 'settingeditor:open', { query: 'nbdist' });
  const choice = page.getByRole('checkbox', { name: 'Log scale' });
  await choice.check();
  await expect(log.first()).toHaveAttribute('aria-pressed', 'true');
  await expect(log.nth(1)).toHaveAttribute('aria-pressed', 'true');
  await choice.uncheck();
  await expect(log.first()).toHaveAttribute('aria-pressed', 'false');
}

/** Expect metrics in a tab, with another run, also after a reload. */
async function expectTab(page: Page, outputs: Locator): Promise<void> {
  await outputs.first().getByRole('button', { name: 'Open in tab' }).click();
  const tab = page.locator('.jp-NbdistMetricsTab');
  await expect(plot(tab, 'loss')).toBeVisible();
  await expect(tab.getByRole('button', { name: 'Open in tab' })).toHaveCount(0);
  await tab.getByText('Compare…').click();
  await tab.getByRole('checkbox', { name: 'Job 2', exact: true }).check();
  await page.keyboard.press('Escape');
  const chips = tab.locator('.nbdist-chip:visible');
  await expect(chips).toHaveCount(2);
  await expect(chips.nth(0)).toContainText('Job 1');
  await expect(chips.nth(1)).toContainText('Job 2');
  await hover(plot(tab, 'loss'), 0.005);
  await expect(tip(tab)).toContainText(/Job 1.*1\.5.*Job 2.*2\.5/);
  expect(await violations(page, '.jp-NbdistMetricsTab')).toEqual([]);
  await page.screenshot({ path: test.info().outputPath('tab.png') });

  const coming = page.waitForEvent('download');
  await tab.getByRole('button', { name: 'CSV' }).click();
  const values = readFileSync(await (await coming).path(), 'utf8');
  expect(values.trimEnd().split('\n')).toHaveLength(1 + 2 * 20);

  // The layout is saved a moment after it has changed.
  await page.waitForResponse(
    answer =>
      answer.url().includes('/api/workspaces/') &&
      answer.request().method() === 'PUT'
  );
  await page.reload();
  await expect(plot(tab, 'loss')).toBeVisible({ timeout: seconds(60) });
}

/** nbdist's settings, as the server has saved them. */
async function settings(page: Page): Promise<string> {
  const answer = await page.request.get('/lab/api/settings/nbdist:plugin', {
    headers: { Authorization: `token ${process.env.NBDIST_TEST_TOKEN}` }
  });
  return ((await answer.json()) as { raw: string }).raw;
}
