import { expect } from '@playwright/test';
import { bar, rank, type IMetric } from '../../labextension/tests/job';
import { Chart, drag, hover } from './chart';
import { test, violations } from './jupyter';

/** A curve on two ranks that is `step` on one and `step + 1` on the other. */
function ramp(
  name: string,
  count: number,
  more: Partial<IMetric> = {}
): IMetric {
  const steps = Array.from({ length: count }, (_, i) => i);
  return {
    name,
    steps,
    values: [steps, steps.map(step => step + 1)],
    ...more
  };
}

let chart: Chart;
test.beforeEach(async ({ page }) => {
  chart = new Chart(page);
  await chart.open();
});

test('the tooltip at the mouse has exact values, with their steps', async () => {
  await chart.send([
    ramp('train/loss', 101, { panel: 'loss', label: 'train' }),
    {
      name: 'val/loss',
      panel: 'loss',
      label: 'val',
      steps: [0, 40, 80],
      values: [[1, 0.123456, 2]]
    }
  ]);
  await hover(chart.plot('loss'), 0.5);
  await expect(chart.tip()).toContainText('step 50');
  await expect(
    chart.tip().getByRole('row', { includeHidden: true }).nth(0)
  ).toHaveText(/train50\.550 to 51/);
  await expect(chart.tip()).toContainText(/val0\.123456at step 40/);
  await chart.page.mouse.move(0, 0);
  await expect(chart.tip()).toHaveCount(0);
});

test('zoom, toggles, the mouse and the focus outlive new states from the kernel', async () => {
  await chart.send([ramp('a', 101), ramp('b', 101)]);
  await chart.button('Log scale').click();
  await drag(chart.plot('a'), 0.4, 0.6);
  await hover(chart.plot('a'), 0.005);
  await expect(chart.tip()).toContainText('step 40');
  await chart.button('Log scale').focus();

  await chart.send([ramp('a', 201), ramp('b', 201), ramp('c', 201)]);
  await expect(chart.tip()).toContainText('step 40');
  await expect(chart.button('Log scale')).toHaveAttribute(
    'aria-pressed',
    'true'
  );
  await expect(chart.button('Log scale')).toBeFocused();
  await hover(chart.plot('b'), 0.005);
  await expect(chart.tip()).toContainText('step 40'); // all charts have this zoom

  await chart.button('Reset zoom').first().click();
  await hover(chart.plot('a'), 0.5);
  await expect(chart.tip()).toContainText('step 100');
  await drag(chart.plot('a'), 0.4, 0.6);
  await chart.plot('a').dblclick();
  await expect(chart.button('Reset zoom')).toHaveCount(0);
});

test('a state that comes during a selection is drawn after it', async () => {
  await chart.send([ramp('a', 101)]);
  await hover(chart.plot('a'), 0.5);
  await chart.page.mouse.down();
  await hover(chart.plot('a'), 0.7);
  await chart.send([ramp('a', 1001)]);
  await hover(chart.plot('a'), 0.8);
  await chart.page.mouse.up();
  await hover(chart.plot('a'), 0.005);
  await expect(chart.tip()).toContainText('step 50');
});

test('a curve for each rank, smoothing, and hidden curves', async () => {
  await chart.send([
    ramp('a', 11, { panel: 'p' }),
    ramp('b', 11, { panel: 'p' })
  ]);
  await chart.button('Per rank').click();
  await hover(chart.plot('p'), 0.5);
  await expect(
    chart.tip().getByRole('row', { includeHidden: true })
  ).toHaveCount(4);
  await expect(chart.tip()).toContainText('a, rank 16');
  await chart.root.getByRole('button', { name: /^b / }).click();
  await hover(chart.plot('p'), 0.5);
  await expect(
    chart.tip().getByRole('row', { includeHidden: true })
  ).toHaveCount(2);
  await chart.root.getByRole('slider', { name: 'Smoothing' }).fill('0.9');
  await hover(chart.plot('p'), 0.5);
  await expect(chart.tip()).toContainText('rank 05');
});

test('all of it by keyboard', async () => {
  await chart.send([ramp('a', 101)]);
  const plot = chart.plot('a');
  await plot.focus();
  await expect(plot).toHaveAttribute('aria-valuetext', 'up to step 100');
  await chart.page.keyboard.press('ArrowLeft');
  await expect(plot).toHaveAttribute('aria-valuetext', 'step 100: a 100.5');
  await chart.page.keyboard.press('Shift+ArrowLeft');
  await chart.page.keyboard.press('ArrowLeft');
  await expect(plot).toHaveAttribute('aria-valuetext', 'step 89: a 89.5');
  await chart.send([ramp('a', 111)]);
  await expect(plot).toHaveAttribute('aria-valuenow', '89');
  await chart.page.keyboard.press('+');
  await expect(chart.button('Reset zoom')).toBeVisible();
  await chart.page.keyboard.press('Home');
  await expect(plot).toHaveAttribute('aria-valuenow', '62');
  await chart.page.keyboard.press('Escape');
  await expect(chart.button('Reset zoom')).toHaveCount(0);
  await chart.page.keyboard.press('Home');
  await expect(plot).toHaveAttribute('aria-valuenow', '0');
});

test('values that are not finite are shown', async () => {
  const steps = [0, 1, 2];
  await chart.send([
    { name: 'a', steps, values: [[1, NaN, 3]], marks: [[1, 'nan', 0]] },
    { name: 'b', steps, values: [[NaN, NaN, NaN]] }
  ]);
  await hover(chart.plot('a'), 0.5);
  await expect(chart.tip()).toContainText('a NaN at step 1 on rank 0');
  await expect(chart.root).toContainText('No finite values yet');
  await chart.root.getByText('Values of 2 metrics').click();
  const rows = chart.root
    .getByRole('region', { name: 'Values' })
    .getByRole('row');
  await expect(rows.nth(1)).toHaveText(/^a3133NaN at step 1 on rank 0$/);
  await expect(rows.nth(2)).toHaveText(/^b–––3$/);
});

test('nothing moves while a job runs', async () => {
  const bars = [
    bar('epoch', { done: 1, total: 3 }),
    bar('batch', { depth: 1, total: 9 })
  ];
  const ranks = [rank(0, { cpu: 5 }), rank(1)];
  await chart.send([ramp('a', 3), ramp('b', 3)], { bars, ranks });
  const boxes = async () => [
    await chart.plot('a').boundingBox(),
    await chart.plot('b').boundingBox(),
    await chart.root.getByRole('region', { name: 'Ranks' }).boundingBox()
  ];
  const before = await boxes();
  await chart.send([ramp('a', 300), ramp('b', 300)], {
    bars: bars.slice(0, 1),
    ranks: [rank(0), rank(1, { state: 'line 7, in all_reduce for 3 s' })],
    straggler:
      'Rank 1 is the slowest: 5.28 ms/step slower than the median (40 %).'
  });
  expect(await boxes()).toEqual(before);
});

test('the state of the job is shown, and announced once', async () => {
  await chart.send([ramp('a', 3)], {
    bars: [bar('epoch', { done: 1, total: 4 })]
  });
  const said: string[] = [];
  await chart.page.exposeFunction('say', (text: string) => said.push(text));
  await chart.root.getByRole('status').evaluate(node => {
    const { say } = window as unknown as { say: (text: string) => void };
    new MutationObserver(() => {
      say(node.textContent!);
    }).observe(node, { childList: true, characterData: true, subtree: true });
  });
  for (let count = 4; count < 9; count++) {
    await chart.send([ramp('a', count)], { seconds: count });
  }
  const bars = [bar('epoch', { done: 1, total: 4, rate: 2 })];
  for (const state of ['interrupted', 'failed'] as const) {
    await chart.send([ramp('a', 9)], { state, bars });
    await expect(chart.root.locator('.nbdist-badge')).toHaveText(state);
    await expect(chart.root).toHaveAttribute('data-state', state);
  }
  await expect
    .poll(() => said)
    .toEqual(['Job 1 on ranks 0-1: interrupted', 'Job 1 on ranks 0-1: failed']);
  const progress = chart.root.getByRole('progressbar', { name: 'epoch' });
  await expect(progress).toHaveAttribute('aria-valuenow', '25');
  await expect(progress).toHaveAttribute(
    'aria-valuetext',
    '25 % · 1 of 4 · 2 epochs/s'
  );
});

test('the table of many ranks is folded, that of a few is not', async () => {
  const ranks = Array.from({ length: 64 }, (_, i) =>
    rank(i, { host: `node${i >> 3}` })
  );
  await chart.send([], { ranks });
  const table = chart.root.getByRole('region', { name: 'Ranks' });
  await expect(table).toBeHidden();
  await chart.root.getByText('64 ranks').click();
  await expect(table.getByRole('row')).toHaveCount(65);
  await chart.send([], { ranks: ranks.slice(0, 3), seconds: 9 });
  await expect(table.getByRole('row')).toHaveCount(4);
  await chart.open();
  await chart.send([], { ranks: ranks.slice(0, 8) });
  await expect(table).toBeVisible();
});

for (const theme of ['light', 'dark'] as const) {
  test(`anyone can use it, ${theme}`, async () => {
    await chart.theme(theme);
    const many = Array.from({ length: 8 }, (_, i) =>
      ramp(`m${i}`, 30, { panel: 'many' })
    );
    await chart.send([ramp('loss', 30), ...many], {
      bars: [
        bar('epoch', { done: 1, total: 3 }),
        bar('endless', { depth: 1, done: 7 })
      ],
      ranks: [rank(0, { cpu: 97, memory: 1e9 }), rank(1)],
      straggler:
        'Rank 1 is the slowest: 5.28 ms/step slower than the median (40 %).',
      note: '2 more metrics in job.metrics: a, b'
    });
    await chart.root.getByText('Values of 9 metrics').click();
    await chart.root.getByRole('button', { name: /^m3 / }).click();
    await drag(chart.plot('loss'), 0.2, 0.8);
    await hover(chart.plot('many'), 0.5);
    expect(await violations(chart.page, 'main')).toEqual([]);
    await chart.button('Per rank').click();
    await chart.send([], { state: 'failed' });
    expect(await violations(chart.page, 'main')).toEqual([]);
  });
}

test('colours follow the theme', async () => {
  const colours = () =>
    chart
      .plot('a')
      .locator('canvas')
      .evaluate((canvas: HTMLCanvasElement) => {
        const { data } = canvas
          .getContext('2d')!
          .getImageData(0, 0, canvas.width, canvas.height);
        let light = 0;
        for (let i = 0; i < data.length; i += 4) {
          light +=
            data[i + 3] > 200 && data[i] + data[i + 1] + data[i + 2] > 3 * 140
              ? 1
              : 0;
        }
        return light;
      });
  await chart.send([ramp('a', 30)]);
  const before = await colours();
  // The page declares itself dark at once; its style sheet comes later.
  await chart.page.route('**/dark.css', async route => {
    await new Promise(resolve => setTimeout(resolve, 1000));
    await route.fallback();
  });
  await chart.theme('dark');
  await expect.poll(colours).toBeGreaterThan(before);
});

test('a kernel with another version of nbdist causes an error message', async () => {
  await chart.send([], { version: 99 });
  await expect(chart.page.getByRole('alert')).toContainText(
    'Restart the kernel'
  );
  await chart.send([ramp('a', 3)]);
  await expect(chart.page.getByRole('alert')).toHaveCount(0);
  await expect(chart.plot('a')).toBeVisible();
});

test('nothing is left behind', async () => {
  await chart.send([ramp('a', 3)]);
  await chart.page.evaluate(() => {
    window.leave();
  });
  await expect(chart.page.locator('main')).toBeEmpty();
});
