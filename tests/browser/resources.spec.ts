/** The folded charts of the resources that ranks use. */

import { expect } from '@playwright/test';
import type { IMetric } from '../../labextension/tests/job';
import { Chart } from './chart';
import { test, violations } from './jupyter';

const BEGAN = 1_000_000;
const SECONDS = Array.from({ length: 120 }, (_, i) => i + 1);
const TIMES = SECONDS.map(second => BEGAN + second);

/** The resources of two ranks over two minutes; the memory of the second rank grows. */
function resources(scale = 1): IMetric[] {
  const common = { steps: SECONDS, times: TIMES };
  const ranks = (value: (second: number, rank: number) => number) =>
    [0, 1].map(rank => SECONDS.map(second => value(second, rank)));
  const network = { panel: 'Network of the host, bytes/s', ...common };
  return [
    {
      name: 'CPU',
      panel: 'CPU, % of one core',
      ...common,
      values: ranks((second, rank) => 90 + 5 * rank + (second % 3))
    },
    {
      name: 'memory',
      panel: 'Memory, bytes',
      ...common,
      values: ranks((second, rank) => scale * (4e8 + rank * 1e6 * second))
    },
    {
      name: 'network received',
      label: 'received',
      ...network,
      values: ranks(second => 2e6 + 1e4 * second)
    },
    {
      name: 'network sent',
      label: 'sent',
      ...network,
      values: ranks(() => 5e5)
    }
  ];
}

let chart: Chart;

test.beforeEach(async ({ page }) => {
  chart = new Chart(page);
  await chart.open();
});

test('they are folded away, apart from the metrics, with units and a clock', async ({
  page
}) => {
  const metric = { name: 'memory', steps: [0, 1], values: [[1, 2]] };
  await chart.send([metric]);
  const fold = page.getByText('Resources', { exact: true });
  await expect(fold).toBeHidden();
  await chart.send([metric], { began: BEGAN }, resources());
  await expect(fold).toBeVisible();
  await expect(chart.plot('CPU, % of one core')).toBeHidden();
  await fold.click();
  await expect(chart.plot('memory')).toHaveCount(1);
  await expect(chart.button('Pin')).toHaveCount(1); // only the metric's: resources cannot be pinned
  const plot = page.getByRole('slider', { name: 'Memory, MB: values by time' });
  await expect(plot).toBeVisible();
  await expect(plot).toHaveAttribute('aria-valuetext', 'up to 2 min');
  await plot.focus();
  await page.keyboard.press('ArrowLeft');
  await expect(plot).toHaveAttribute(
    'aria-valuetext',
    '2 min: rank 0 400, rank 1 520'
  );
  await expect(
    page.getByRole('slider', { name: /Network of the host, MB\/s/ })
  ).toBeVisible();
  expect(await violations(page, '.nbdist-metrics')).toEqual([]);
  await chart.theme('dark');
  expect(await violations(page, '.nbdist-metrics')).toEqual([]);
});

test('their zoom is their own, and what is chosen for metrics does not change them', async ({
  page
}) => {
  const values = [[1, 2, 3]];
  await chart.send(
    [{ name: 'loss', steps: [0, 1, 2], values }],
    { began: BEGAN },
    resources()
  );
  await page.getByText('Resources', { exact: true }).click();
  const plot = page.getByRole('slider', { name: /^CPU, % of one core/ });
  const reset = page.locator('.nbdist-resources .nbdist-reset:visible');
  await plot.focus();
  await page.keyboard.press('+');
  await expect(reset).toHaveCount(3);
  await expect(page.locator('.nbdist-reset:visible')).toHaveCount(3);
  await expect(page.locator('.nbdist-resources .nbdist-rank')).toHaveCount(4);
});

test('memory that outgrows its unit is shown in the next one', async ({
  page
}) => {
  await chart.send([], { began: BEGAN }, resources());
  await page.getByText('Resources', { exact: true }).click();
  await expect(page.getByRole('slider', { name: /^Memory, MB/ })).toBeVisible();
  await chart.send([], { began: BEGAN }, resources(10));
  await expect(page.getByRole('slider', { name: /^Memory, GB/ })).toBeVisible();
  await expect(page.getByRole('slider', { name: /^Memory/ })).toHaveCount(1);
  await expect(page.locator('.nbdist-resources .nbdist-title')).toHaveText([
    'CPU, % of one core',
    'Memory, GB',
    'Network of the host, MB/s'
  ]);
});
