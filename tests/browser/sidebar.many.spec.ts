/** A thousand ranks, through the real server: the page stays quick. */

import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from '@playwright/test';
import { openLab, test, violations } from './jupyter';
import { Sidebar } from './sidebar';
import { cluster, Fake, job, process as processOf, rank, state } from './state';

const FOLDER = join(process.env.NBDIST_TEST_HOME!, 'runtime/nbdist');
const FILE = join(FOLDER, 'feed.json');
const RANKS = 1000;
/** The file into which a benchmark wants the longest pauses, in milliseconds. */
const FIGURES = process.env.NBDIST_TEST_FIGURES;

/** Write the state of a kernel on another host: whether its process lives cannot be seen here. */
function write(time: number): void {
  const ranks = Array.from({ length: RANKS }, (_, i) =>
    rank(i, {
      host: `node${i >> 3}`,
      device: `cuda:${i % 8}`,
      words: `line ${10 + ((i + time) % 7)}`,
      cpu: (i * 7 + time * 13) % 100,
      memory: 4e9 + ((i + time) % 10) * 1e8,
      gpu: (i + time * 31) % 100,
      gpu_memory: 6e10
    })
  );
  const bars = [{ label: 'steps', done: time, total: 1000, rate: 5 }];
  const {
    id: _,
    alive: __,
    ...record
  } = processOf({
    host: 'elsewhere',
    kernel: '',
    clusters: [cluster(ranks)],
    jobs: [job({ bars, ranks })]
  });
  writeFileSync(
    `${FILE}.part`,
    JSON.stringify({ ...record, id: 'feed', created: 1, version: 1 }),
    { mode: 0o600 }
  );
  renameSync(`${FILE}.part`, FILE);
}

test('a thousand ranks are followed, and only ranks in sight are drawn', async ({
  page
}) => {
  mkdirSync(FOLDER, { recursive: true, mode: 0o700 });
  let time = 0;
  write(time);
  const timer = setInterval(() => {
    write(++time);
  }, 200);
  try {
    const sidebar = new Sidebar(page);
    await openLab(page);
    await sidebar.open();
    await expect(sidebar.rank(0)).toHaveAccessibleName(
      /^Rank 0: running cell line \d+, GPU \d+ %/
    );
    await expect(sidebar.cluster()).toContainText('1000 ranks');
    // Only cells in sight are drawn.
    expect(
      await sidebar.cluster().locator('.jp-NbdistCell').count()
    ).toBeLessThan(80);
    expect(await violations(page, '#nbdist-panel')).toEqual([]);
    const box = sidebar.cluster().getByRole('listbox');
    await page.waitForTimeout(2000); // the page has finished what it does once
    await page.evaluate(() => {
      window.paused = [];
      new PerformanceObserver(list => {
        window.paused.push(
          ...list.getEntries().map(({ duration }) => duration)
        );
      }).observe({ type: 'longtask' });
    });
    const before = time;
    for (let i = 0; i <= 30; i++) {
      await box.evaluate((node, share) => {
        node.scrollTop = share * (node.scrollHeight - node.clientHeight);
      }, i / 30);
      await page.waitForTimeout(200);
    }
    await expect(sidebar.rank(999)).toBeVisible();
    expect(time).toBeGreaterThan(before + 20);
    const paused = (): Promise<number[]> => page.evaluate(() => window.paused);
    if (FIGURES !== undefined) {
      writeFileSync(FIGURES, JSON.stringify(await paused()));
    }
    // Check that a pause is noticed.
    await page.evaluate(() => {
      setTimeout(() => {
        const until = performance.now() + 100;
        while (performance.now() < until);
      });
    });
    await expect.poll(async () => (await paused()).length).toBeGreaterThan(0);
  } finally {
    clearInterval(timer);
    rmSync(FILE, { force: true });
  }
});

test('ranks of a grid are chosen by keyboard and by click', async ({
  page
}) => {
  const fake = new Fake(page);
  await fake.open();
  const sidebar = new Sidebar(page);
  await openLab(page);
  const ranks = Array.from({ length: 16 }, (_, i) => rank(i, { cpu: i }));
  ranks[9] = rank(9, {
    state: 'dead',
    words: 'was killed by SIGKILL',
    cpu: null
  });
  fake.state = state(
    [processOf({ clusters: [cluster(ranks)], jobs: [job()] })],
    { time: 1_000_200 }
  );
  await sidebar.open();
  const grid = sidebar.cluster().getByRole('listbox', { name: '16 ranks' });
  await expect(grid.getByRole('option')).toHaveCount(16);
  const all = sidebar.root.getByRole('group', { name: 'Mean of all ranks' });
  await expect(all).toContainText('CPUmin 7 %, max 7 %');
  await grid.focus();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  const one = sidebar.root.getByRole('group', { name: 'Rank 1', exact: true });
  await expect(one).toContainText('CPUmin 1 %, max 1 %');
  await expect(one).toContainText('pid 41001');
  await expect(sidebar.rank(1)).toHaveAttribute('aria-selected', 'true');
  await page.keyboard.press('End');
  await expect(
    sidebar.root.getByRole('group', { name: 'Rank 15' })
  ).toBeVisible();
  expect(await violations(page, '#nbdist-panel')).toEqual([]);
  await page.keyboard.press('Escape');
  await expect(all).toBeVisible();
  await sidebar.rank(9).click();
  await expect(
    sidebar.root.getByRole('group', { name: 'Rank 9' })
  ).toContainText('killed by SIGKILL');
  await sidebar.button('Restart rank 9').click();
  await expect
    .poll(() => fake.asked)
    .toEqual(['POST processes/a1/restart {"cluster":"1","rank":9}']);
});

declare global {
  interface Window {
    paused: number[];
  }
}
