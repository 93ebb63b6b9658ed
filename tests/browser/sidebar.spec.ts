/** The panel in the sidebar against the real server, with real ranks. */

import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { expect, type Page } from '@playwright/test';
import {
  command,
  endKernels,
  Flag,
  kernelIs,
  open,
  runCell,
  strangers,
  tellIfFailed,
  test,
  upload,
  violations
} from './jupyter';
import { seconds } from './limits';
import { Sidebar } from './sidebar';

const LOAD = '%load_ext nbdist';

/** Two ranks that print and log until the flag is raised. */
function training(flag: Flag, flags = '-np 2 --backend none'): string {
  return `%%distributed ${flags}
import itertools, os, time, nbdist
for step in nbdist.progress(itertools.count(), "steps", total=1000, samples=8):
    nbdist.log({"train/loss": 2 / (1 + step / 10)}, step=step)
    print("step", step, "of rank", rank, flush=True)
    time.sleep(0.1)
    if os.path.exists(${JSON.stringify(flag.path)}):
        break`;
}

const BUSY = '%%distributed\nwhile True:\n    pass';

const HANG = `%%distributed -np 2 --backend ddp
import time, torch, torch.distributed as dist
if rank == 0:
    dist.all_reduce(torch.ones(1))
else:
    time.sleep(600)`;

/** Open a notebook beside the panel. */
async function begin(
  page: Page,
  name: string,
  cells: string[]
): Promise<Sidebar> {
  await upload(page, name, cells);
  await open(page, name);
  const sidebar = new Sidebar(page);
  await sidebar.open();
  return sidebar;
}

const SLOW = { timeout: seconds(60) };

test.afterEach(async ({ page, request }) => {
  await tellIfFailed(page);
  await page.goto('about:blank');
  await endKernels(request);
  // Killed kernels would stay in the panel for a while.
  rmSync(join(process.env.NBDIST_TEST_HOME!, 'runtime/nbdist'), {
    recursive: true,
    force: true
  });
});

test('a cluster is started, followed while it is busy, and shown after its kernel has died', async ({
  page
}) => {
  test.setTimeout(seconds(300));
  const name = 'followed.ipynb';
  const far = strangers(page);
  const flag = new Flag('followed');
  const sidebar = await begin(page, name, [LOAD, training(flag), BUSY]);
  await expect(sidebar.root).toContainText('No cluster yet');

  await test.step('it is started in a notebook that is chosen, and listed with what is running', () =>
    startCluster(page, sidebar, name));
  await test.step('its job is followed', async () => {
    await runCell(page, 0);
    await runCell(page, 1);
    await expectFollowed(page, sidebar);
    expect(await violations(page, '#nbdist-panel')).toEqual([]);
  });
  await test.step('its log is followed, and searched', () =>
    expectLog(page, sidebar));
  await test.step('a reload finds all of it', () =>
    expectReloaded(page, sidebar, name));
  await test.step('it is idle when the job has ended', async () => {
    flag.raise();
    await expect(sidebar.rank(0)).toContainText('idle');
    await expect(sidebar.rank(0)).toContainText(/Memory \d+ MB/);
    await expect(sidebar.cluster()).toContainText('done');
    expect(far).toEqual([]);
    // Ranks are idle before the cell has ended, and a rank killed before its end would be replaced.
    await kernelIs(page, 'idle');
  });
  await test.step('a rank that was killed is seen, and started anew', () =>
    expectKilledRank(sidebar));
  await test.step('its kernel dies: the panel reports that, and what is left', async () => {
    await runCell(page, 2);
    await expect(sidebar.rank(0)).toContainText('running cell line', SLOW);
    await expectDeath(sidebar, name);
  });
});

test('a hang, a cell that never ends, and a detached job', async ({ page }) => {
  test.setTimeout(seconds(300));
  const flag = new Flag('detached');
  const sidebar = await begin(page, 'hang.ipynb', [
    LOAD,
    HANG,
    BUSY,
    training(flag, '-np 2 --backend none --detach')
  ]);
  await expect(sidebar.root).toContainText('No cluster yet');
  await runCell(page, 0);
  await test.step('a cluster is seen as soon as a cell starts it', async () => {
    await runCell(page, 1);
    await expect(sidebar.cluster()).toBeVisible(SLOW);
  });
  await test.step('stacks of a hang show both lines, and an interrupt ends it', async () => {
    await expectStacks(page, sidebar);
    await command(page, 'application:close'); // close the stacks: the notebook is in front again
  });
  await test.step('stop ends a cell that is busy, and says what is lost', async () => {
    await kernelIs(page, 'idle');
    await runCell(page, 2);
    await expect(sidebar.rank(0)).toContainText('running cell line', SLOW);
    await sidebar.button('Stop Cluster 1').click();
    await expect(page.getByRole('dialog')).toContainText(
      'Variables on its ranks will be lost'
    );
    await sidebar.accept('Stop');
    await kernelIs(page, 'idle'); // the cell never ends by itself
    await expect(sidebar.cluster()).toHaveCount(0);
  });
  await test.step('a detached job is attached, and removed when it has ended', async () => {
    await runCell(page, 3);
    await expectDetached(page, sidebar, flag);
  });
});

/** Start two ranks by the panel's button. */
async function startCluster(
  page: Page,
  sidebar: Sidebar,
  name: string
): Promise<void> {
  await sidebar.button('Start a cluster…').click();
  const dialog = page.getByRole('dialog');
  await expect(dialog.getByLabel('Notebook')).toContainText(name);
  await dialog.getByLabel('Ranks').fill('2');
  await dialog.getByLabel('Communication backend').selectOption('none');
  await sidebar.accept('Start');
  await expect(
    page.getByText(/Running in the kernel: %dist start -np 2 --backend none/)
  ).toBeVisible();
  await expect(sidebar.cluster()).toBeVisible(SLOW);
  await expect(sidebar.rank(1)).toContainText('idle', SLOW);
  await expect(page.getByText(/ready after/).first()).toBeVisible();
  await page.getByRole('tab', { name: /Running/ }).click();
  await expect(page.getByText(`Cluster 1 of ${name} (2 ranks)`)).toBeVisible();
  await sidebar.open();
}

async function expectFollowed(page: Page, sidebar: Sidebar): Promise<void> {
  await expect(sidebar.cluster()).toContainText('2 ranks');
  await expect(sidebar.cluster()).toContainText('none');
  await expect(sidebar.rank(1)).toContainText(/running cell line [4-8]/, SLOW);
  await expect(sidebar.rank(1)).toContainText(/pid \d+/);
  await expect(sidebar.rank(1)).toContainText(/Memory \d+ MB/);
  await expect(sidebar.root).toContainText('train/loss');
  const bar = sidebar.root.getByRole('progressbar', { name: 'steps' });
  const done = async (): Promise<number> =>
    Number(await bar.getAttribute('value'));
  const before = await done();
  await expect.poll(done).toBeGreaterThan(before + 10);
  await expect(page.getByText('2/2 ranks busy')).toBeVisible();
}

async function expectLog(page: Page, sidebar: Sidebar): Promise<void> {
  await sidebar
    .rank(1)
    .getByRole('button', { name: 'Open the log of rank 1' })
    .click(SLOW);
  const view = page.getByRole('region', { name: /^Rank 1 in Job/ });
  const last = async (): Promise<number> => {
    const told = (await view.getByRole('log').textContent()) ?? '';
    const steps = [...told.matchAll(/step (\d+) of rank 1/g)];
    return Number(steps.pop()?.[1] ?? -1);
  };
  await expect.poll(last).toBeGreaterThan(10);
  const before = await last();
  await expect.poll(last).toBeGreaterThan(before + 10);
  await expect(view.getByRole('log')).toContainText(
    `step ${await last()} of rank 1`
  );
  await view.getByRole('searchbox').fill('STEP 7 of');
  await expect(view.getByRole('status')).toHaveText('1 line found');
  await view.getByRole('searchbox').press('Enter');
  await expect(view.getByRole('status')).toHaveText('1 of 1');
  await expect(view.locator('.jp-mod-current')).toHaveText('step 7 of rank 1');
  await expect(
    view.getByRole('checkbox', { name: 'Follow' })
  ).not.toBeChecked();
  expect(await violations(page, '.jp-NbdistView')).toEqual([]);
}

/** Reload the page: the panel is complete again, although the notebook's cells come late. */
async function expectReloaded(
  page: Page,
  sidebar: Sidebar,
  name: string
): Promise<void> {
  let bring = (): void => undefined;
  const late = new Promise<void>(resolve => {
    bring = resolve;
  });
  const cells = (url: URL): boolean =>
    url.pathname.endsWith(`/api/contents/${name}`) &&
    url.searchParams.get('content') === '1';
  await page.route(cells, async route => {
    await late;
    await route.fallback();
  });
  await page.goto('/lab');
  await expect(sidebar.rank(0)).toContainText('running cell line', SLOW);
  const link = sidebar.root.getByRole('button', {
    name,
    exact: true
  });
  await expect(link).toBeVisible();
  await link.click();
  await expect(
    page.getByRole('tab', { name: new RegExp(name) })
  ).toHaveAttribute('aria-selected', 'true');

  // A click on a rank leads to its line in the cell.
  await sidebar
    .rank(0)
    .getByRole('button', { name: /^running cell line/ })
    .click();
  bring();
  const active = page.locator('.jp-Cell.jp-mod-active');
  await expect(active).toContainText('%%distributed');
}

async function expectKilledRank(sidebar: Sidebar): Promise<void> {
  const told = await sidebar.rank(1).textContent();
  const pid = Number(/pid (\d+)/.exec(told ?? '')?.[1]);
  expect(pid).toBeGreaterThan(1);
  process.kill(pid, 'SIGKILL');
  await expect(sidebar.rank(1)).toContainText('killed by SIGKILL');
  await expect(sidebar.root.getByRole('status')).toContainText(
    'Rank 1 of Cluster 1: killed by SIGKILL'
  );
  await sidebar.button('Restart rank 1').click();
  await expect(sidebar.rank(1)).toContainText('idle');
  await expect(sidebar.rank(1)).not.toContainText(`pid ${pid}`);
}

/** Kill the kernel: its ranks end with it. */
async function expectDeath(sidebar: Sidebar, name: string): Promise<void> {
  const kernel = sidebar.root.locator('.jp-NbdistHead [title^=pid]');
  const title = (await kernel.getAttribute('title')) ?? '';
  const pid = Number(title.split(' ')[1]);
  process.kill(pid, 'SIGKILL');
  await sidebar.accept('Ok'); // JupyterLab's own message
  // The ranks have ended with their kernel: the server finds that, and nothing can be stopped.
  await sidebar.section('Dead kernels').click();
  await expect(sidebar.root).toContainText(
    `Kernel died (pid ${pid}): all ranks exited`,
    SLOW
  );
  await sidebar.button(`Details of ${name}`).click();
  await expect(sidebar.rank(0)).toContainText(/last seen: line \d/);
  await expect(sidebar.button('Stop Cluster 1')).toHaveCount(0);
  await sidebar.button('Clear Finished Jobs').click();
  await sidebar.accept('Clear');
  await expect(sidebar.root).toContainText('No cluster yet');
}

async function expectStacks(page: Page, sidebar: Sidebar): Promise<void> {
  await expect(sidebar.rank(0)).toContainText(/in all_?reduce for \d/i, SLOW);
  await sidebar.button('Show stack traces of Cluster 1').click();
  const stacks = page.getByRole('region', { name: /^Stack traces: Cluster 1/ });
  const first = stacks.getByRole('group', { name: 'Rank 0' });
  const second = stacks.getByRole('group', { name: 'Rank 1' });
  await expect(first.locator('mark').first()).toContainText('line 4');
  await expect(first).toContainText('dist.all_reduce(torch.ones(1))');
  await expect(second.locator('mark').first()).toContainText('line 6');
  await expect(second).toContainText('time.sleep(600)');
  expect(await violations(page, '.jp-NbdistView')).toEqual([]);
  await sidebar.button(/^Interrupt Job/).click();
  await expect(sidebar.cluster()).toContainText('interrupted');
  await expect(sidebar.rank(0)).toContainText('idle');
}

async function expectDetached(
  page: Page,
  sidebar: Sidebar,
  flag: Flag
): Promise<void> {
  await expect(sidebar.root).toContainText('detached', SLOW);
  await expect(sidebar.root).toContainText(/Job [0-9a-f]{6}/);
  const told = (await sidebar.root.textContent()) ?? '';
  const name = /Job ([0-9a-f]{6})/.exec(told)?.[1] ?? '';
  await expect(sidebar.root).toContainText('running cell line');
  await sidebar.button(`Attach Job ${name}`).click();
  await expect(
    page.locator('.jp-Cell', { hasText: `%dist attach ${name}` }).last()
  ).toContainText('step', SLOW);
  flag.raise();
  await expect(sidebar.root).toContainText('done', SLOW);
  await sidebar.button('Clear Finished Jobs').click(SLOW);
  await sidebar.accept('Clear');
  await expect(sidebar.root).not.toContainText(name);
}
