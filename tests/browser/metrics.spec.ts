/** The charts of the live metrics: axes, tooltips, and the user's options. */

import { readFileSync } from 'node:fs';
import { expect } from '@playwright/test';
import { type IMetric } from '../../labextension/tests/job';
import { Chart, drag, hover } from './chart';
import { test, violations } from './jupyter';

let chart: Chart;
test.beforeEach(async ({ page }) => {
  chart = new Chart(page);
  await chart.open();
});

function metric(name: string, values: number[]): IMetric {
  return { name, steps: values.map((_, i) => i), values: [values] };
}

/** How many pixels are painted left of a chart's curves, where the labels of the axis are. */
async function labelled(title: string): Promise<number> {
  return chart
    .plot(title)
    .locator('canvas')
    .evaluate((canvas: HTMLCanvasElement) => {
      const { data } = canvas
        .getContext('2d')!
        .getImageData(0, 0, 50 * devicePixelRatio, canvas.height * 0.85);
      return data.filter((_, i) => i % 4 === 3 && data[i] > 100).length;
    });
}

test('an axis has labels at any range, linear and logarithmic', async () => {
  const ranges: Record<string, number[]> = {
    'sixty decades': [1e-30, 1, 1e30],
    huge: [1e33, 3e38],
    tiny: [1e-38, 3e-37],
    'a part of one': [101, 101.2],
    level: [3, 3]
  };
  await chart.send(
    Object.entries(ranges).map(([name, values]) => metric(name, values))
  );
  for (const log of [false, true]) {
    if (log) {
      await chart.button('Log scale').click();
    }
    for (const name of Object.keys(ranges)) {
      await chart.plot(name).scrollIntoViewIfNeeded();
      await expect
        .poll(() => labelled(name), { message: `${name}, log: ${log}` })
        .toBeGreaterThan(20);
    }
  }
});

test('charts become narrower when the page does', async ({ page }) => {
  await chart.send([metric('a', [1, 2]), metric('b', [1, 2])]);
  const width = async () => (await chart.plot('a').boundingBox())!.width;
  await page.setViewportSize({ width: 500, height: 900 });
  await expect.poll(width).toBeLessThan(500);
  const before = await width();
  for (const wide of [1280, 1800]) {
    await page.setViewportSize({ width: wide, height: 900 });
    await expect.poll(width).not.toBe(before);
  }
  await page.setViewportSize({ width: 500, height: 900 });
  await expect.poll(width).toBe(before);
  await expect
    .poll(() =>
      chart
        .plot('a')
        .locator('.u-wrap')
        .evaluate(node => node.clientWidth)
    )
    .toBe(before);
});

test('a tooltip is within its chart, whatever its length', async () => {
  const curves = Array.from({ length: 8 }, (_, i) => ({
    ...metric('m', [1, 2, 3]),
    name: `a rather long name of a metric ${i}`,
    label: `a rather long name of a metric ${i}`,
    panel: 'many',
    values: Array.from({ length: 4 }, (_, rank) => [1, 2, 3 + rank])
  }));
  await chart.send([...curves, metric('b', [1, 2]), metric('c', [1, 2])]);
  await chart.button('Per rank').click();
  for (const across of [0.01, 0.5, 0.99]) {
    await hover(chart.plot('many'), across);
    const tip = (await chart.tip().boundingBox())!;
    const plot = (await chart.plot('many').boundingBox())!;
    expect(tip.x).toBeGreaterThanOrEqual(plot.x - 1);
    expect(tip.x + tip.width).toBeLessThanOrEqual(plot.x + plot.width + 1);
    expect(tip.y).toBeGreaterThanOrEqual(plot.y);
    expect(tip.y + tip.height).toBeLessThanOrEqual(plot.y + plot.height);
  }
  await expect(chart.tip()).toContainText('24 more');
});

test('the tooltip of a smoothed curve has both values', async () => {
  await chart.send([metric('loss', [1, 3, 5])]);
  await chart.root.getByRole('slider', { name: 'Smoothing' }).fill('0.5');
  await hover(chart.plot('loss'), 0.99);
  await expect(chart.tip()).toContainText(/loss5smoothed 3\.857/);
});

test('time and epoch as x axis of all panels, and zoom along them', async () => {
  const steps = [0, 1, 2, 3, 4];
  const times = steps.map(step => 1_000_000 + 30 * step);
  const loss = { name: 'loss', steps, times, values: [[5, 4, 3, 2, 1]] };
  await chart.send([loss]);
  const axis = chart.root.getByLabel('X axis');
  await expect(axis.getByRole('option')).toHaveText(['Step', 'Time']);
  const epoch = { name: 'epoch', steps, times, values: [[0, 1, 2, 3, 4]] };
  await chart.send([loss, epoch]);
  await axis.selectOption('Time');
  const slider = chart.root.getByRole('slider', {
    name: 'loss: values by time'
  });
  await hover(slider, 0.5);
  await expect(chart.tip()).toContainText(/^1 minloss3/);
  await drag(slider, 0.4, 0.8);
  await expect(chart.button('Reset zoom')).toHaveCount(2);
  await axis.selectOption('Epoch');
  await expect(chart.button('Reset zoom')).toHaveCount(0);
  const byEpoch = chart.root.getByRole('slider', {
    name: 'loss: values by epoch'
  });
  await hover(byEpoch, 0.5);
  await expect(chart.tip()).toContainText(/^epoch 2loss3/);
});

test('a filter finds panels among many, and pinned panels come first', async () => {
  const names = Array.from({ length: 30 }, (_, i) => `layer${i}/norm`);
  await chart.send([
    metric('loss', [1, 2]),
    ...names.map(name => ({ ...metric(name, [1, 2]), panel: name }))
  ]);
  const panels = chart.root.getByRole('figure');
  await expect(panels).toHaveCount(31);
  // A panel out of sight draws nothing.
  const canvases = chart.root.locator('canvas');
  await expect.poll(() => canvases.count()).toBeLessThan(31);
  const field = chart.root.getByRole('searchbox', { name: 'Filter metrics' });
  await field.fill('layer2 norm');
  await expect(panels).toHaveCount(11);
  await field.fill('nothing of this');
  await expect(panels).toHaveCount(0);
  await expect(chart.root).toContainText('No metric has');
  await field.fill('layer17');
  await expect(panels).toHaveCount(1);
  await expect(chart.plot('layer17/norm').locator('canvas')).toBeVisible();
  const pin = chart.button('Pin layer17/norm');
  await panels.hover();
  await pin.click();
  await expect(pin).toHaveAttribute('aria-pressed', 'true');
  await field.fill('');
  await expect(panels.first()).toContainText('layer17/norm');
  await pin.focus();
  await chart.page.keyboard.press('Enter');
  await expect(panels.first()).toContainText('loss');
  await expect(pin).toBeFocused();
  expect(await violations(chart.page, 'main')).toEqual([]);
});

test('an axis from zero', async () => {
  await chart.send([metric('a', [10, 11])]);
  const top = () =>
    chart
      .plot('a')
      .locator('canvas')
      .evaluate((canvas: HTMLCanvasElement) => canvas.toDataURL());
  await expect(chart.plot('a').locator('canvas')).toBeVisible();
  const before = await top();
  await chart.button('From 0').click();
  await expect.poll(top).not.toBe(before);
  await expect(chart.button('From 0')).toHaveAttribute('aria-pressed', 'true');
});

test('a panel is saved as a picture, also on white from a dark page', async ({
  page
}) => {
  await chart.theme('dark');
  await chart.send([
    { ...metric('train/loss', [3, 2, 1]), panel: 'loss', label: 'train' },
    { ...metric('val/loss', [3, 2.5, 2]), panel: 'loss', label: 'val' }
  ]);
  const grounds: number[] = [];
  for (const which of ['PNG on white', 'PNG as shown']) {
    await chart.root.getByRole('figure').hover();
    await chart.root.locator('summary[aria-label="Save loss"]').click();
    expect(await violations(page, 'main')).toEqual([]);
    const coming = page.waitForEvent('download');
    await chart.button(which).click();
    const file = await coming;
    expect(file.suggestedFilename()).toBe('loss.png');
    await file.saveAs(test.info().outputPath(`${which}.png`));
    const bytes = readFileSync(await file.path());
    const [ground, inks] = await page.evaluate(async data => {
      const image = await createImageBitmap(
        await (await fetch(`data:image/png;base64,${data}`)).blob()
      );
      const canvas = new OffscreenCanvas(image.width, image.height);
      const ctx = canvas.getContext('2d')!;
      ctx.drawImage(image, 0, 0);
      const pixels = new Uint32Array(
        ctx.getImageData(0, 0, image.width, image.height).data.buffer
      );
      return [pixels[0] & 0xff, new Set(pixels).size];
    }, bytes.toString('base64'));
    grounds.push(ground);
    expect(inks).toBeGreaterThan(20);
  }
  expect(grounds[0]).toBe(255);
  expect(grounds[1]).toBeLessThan(64);
});

test('values are saved as CSV, with a note if the page has only a part of them', async ({
  page
}) => {
  await chart.send([metric('loss', [3, 2])]);
  const save = async (): Promise<[string, string]> => {
    const coming = page.waitForEvent('download');
    await chart.button('CSV').click();
    const file = await coming;
    return [file.suggestedFilename(), readFileSync(await file.path(), 'utf8')];
  };
  const [name, text] = await save();
  expect(name).toBe('metrics-Job-1.csv');
  expect(text).toContain('Job 1,loss,,1,1000001,2');
  await expect(chart.root).toContainText(
    'Saved the values that this page has.'
  );
  await chart.send([{ ...metric('loss', [3, 2]), stride: 8 }]);
  expect((await save())[0]).toBe('metrics-Job-1-thinned.csv');
  await expect(chart.root).toContainText('long curves are thinned');
});
