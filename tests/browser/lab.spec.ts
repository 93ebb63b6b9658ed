import { expect, type Locator, type Page } from '@playwright/test';
import { drag, hover, plot, tip } from './chart';
import {
  closeAndReopen,
  command,
  copyUntrusted,
  endKernels,
  Flag,
  kernelIs,
  LOAD_WITHOUT_TORCH,
  metrics,
  open,
  save,
  strangers,
  tellIfFailed,
  test,
  upload,
  violations
} from './jupyter';
import { seconds } from './limits';

const MIME = 'application/vnd.nbdist.metrics+json';

/** Two ranks that log until the flag is raised; the mean of their losses at a step is `loss`. */
function training(flag: Flag, flags = ''): string[] {
  return [
    LOAD_WITHOUT_TORCH,
    `%%distributed -np 2 --backend none ${flags}
import itertools, os, time, nbdist
for step in nbdist.progress(itertools.count(), "steps", total=1000, samples=8):
    nbdist.log({"train/loss": 2 / (1 + step / 10) + rank / 4}, step=step)
    nbdist.log(lr=0.001)
    time.sleep(0.2)
    if os.path.exists(${JSON.stringify(flag.path)}):
        break`
  ];
}

const loss = (step: number): number => 2 / (1 + step / 10) + 1 / 8;

/** The last step that a chart of a page shows. */
async function lastStep(root: Locator): Promise<number> {
  return Number(await plot(root, 'loss').getAttribute('aria-valuemax'));
}

async function expectToMove(root: Locator): Promise<void> {
  const step = await lastStep(root);
  await expect
    .poll(() => lastStep(root), { timeout: seconds(30) })
    .toBeGreaterThan(step + 2);
}

/** Start the cells of a notebook, and wait for the first curves. */
async function train(
  page: Page,
  name: string,
  cells: string[],
  where: 'lab' | 'notebooks' = 'lab'
): Promise<Locator> {
  await upload(page, name, cells);
  await open(page, name, where);
  await command(page, 'notebook:run-all-cells');
  const root = metrics(page);
  await expect(plot(root, 'loss')).toBeVisible({ timeout: seconds(60) });
  return root;
}

/** Run the cells of the notebook in front again, with other curves, and wait for the new curves. */
async function trainAgain(
  page: Page,
  source: string,
  state = 'running'
): Promise<Locator> {
  await page.evaluate(source => {
    const { content } = window.jupyterapp.shell.currentWidget!;
    content!.widgets[1].model.sharedModel.setSource(source);
  }, source);
  await command(page, 'notebook:run-all-cells');
  const root = metrics(page);
  await expect(root.locator('.nbdist-badge')).toHaveText(state, {
    timeout: seconds(60)
  });
  await expect(plot(root, 'loss')).toBeVisible({ timeout: seconds(60) });
  return root;
}

/** Reload the page: the curves are there at once, and go on. */
async function reload(page: Page, name: string): Promise<Locator> {
  let root = metrics(page);
  await save(page, name, 1, MIME);
  const step = await lastStep(root);
  await page.reload();
  root = metrics(page);
  await expect(plot(root, 'loss')).toBeVisible({ timeout: seconds(60) });
  expect(await lastStep(root)).toBeGreaterThanOrEqual(step);
  await expectToMove(root);
  return root;
}

/** End the job: the end is shown, saved, and still there in a notebook without a kernel. */
async function finish(page: Page, name: string, flag: Flag): Promise<void> {
  const root = metrics(page);
  flag.raise();
  await expect(root.locator('.nbdist-badge')).toHaveText('done');
  await kernelIs(page, 'idle');
  // Saved also if the kernel's last message has not reached the page.
  await save(page, name, 1, 'done after');
  await closeAndReopen(page, name);
  await expect(root.locator('.nbdist-badge')).toHaveText('done');
  await expectInteractive(page, root);
}

/** Expect the tooltip to show exactly what was logged at a step. */
async function expectExact(root: Locator): Promise<void> {
  await expect(async () => {
    await hover(plot(root, 'loss'), 0.4);
    const told = (await tip(root).textContent())!;
    const step = Number(/^step (\d+)/.exec(told)?.[1]);
    expect(step, told).toBeGreaterThan(0);
    expect(told).toContain(String(Number(loss(step).toPrecision(6))));
  }).toPass({ timeout: seconds(30) }); // one rank may still lack a step that the other has
}

/** The kernel's pid, which the first cell has printed. */
async function kernelPid(page: Page): Promise<number> {
  const told = page.locator('.jp-OutputArea-output', {
    hasText: /^kernel \d+/
  });
  return Number((await told.textContent())!.split(' ')[1]);
}

/** Expect a chart to work without the kernel: it zooms, and shows its values. */
async function expectInteractive(page: Page, root: Locator): Promise<void> {
  const chart = plot(root, 'loss');
  await chart.scrollIntoViewIfNeeded();
  await hover(chart, 0.5);
  await expect(tip(root)).toContainText(/step \d+/);
  await drag(chart, 0.3, 0.7);
  // All charts of a job zoom together.
  await expect(
    root.getByRole('button', { name: 'Reset zoom' }).first()
  ).toBeVisible();
  await page.mouse.move(0, 0);
}

test.afterEach(async ({ page, request }) => {
  await tellIfFailed(page);
  await page.goto('about:blank');
  await endKernels(request);
});

test('curves of a busy kernel move, stay interactive, and are kept without a kernel', async ({
  page
}) => {
  test.setTimeout(seconds(360));
  const name = 'busy.ipynb';
  const far = strangers(page);
  const flag = new Flag('busy');
  const root = await train(page, name, training(flag));
  await test.step('curves move while the cell is busy, and stay interactive', async () => {
    await expectToMove(root);
    await expect(
      page.locator('.jp-InputPrompt', { hasText: '[*]' })
    ).toBeVisible();
    await expect(
      root.getByRole('progressbar', { name: 'steps' })
    ).not.toHaveAttribute('aria-valuenow', '0');
    await expect(root.locator('.nbdist-badge')).toHaveText('running');
    await expectExact(root);
    expect(await violations(page, '.nbdist-metrics')).toEqual([]);
  });
  await test.step('they follow the theme', async () => {
    await command(page, 'apputils:change-theme', { theme: 'JupyterLab Dark' });
    await expect(root).toHaveClass(/nbdist-dark/);
    expect(await violations(page, '.nbdist-metrics')).toEqual([]);
    await expectToMove(root);
  });
  await test.step('they are kept when the job is done', async () => {
    flag.raise();
    await expect(root.locator('.nbdist-badge')).toHaveText('done');
    await kernelIs(page, 'idle');
    await expect(root).toHaveClass(/nbdist-dark/);
    await expectInteractive(page, root);
    const outputs = await save(page, name, 1, 'data:image/png');
    expect(outputs).not.toContain('widget-view');
    expect(far).toEqual([]);
  });
  await test.step('a notebook that is not trusted shows them without a kernel', async () => {
    await copyUntrusted(page, name, 'theirs.ipynb');
    await endKernels(page.request);
    await closeAndReopen(page, 'theirs.ipynb');
    await expect(root.locator('.nbdist-badge')).toHaveText('done');
    await expectInteractive(page, root);
  });
});

test('an interrupted cell keeps its curves, and a reloaded page is live', async ({
  page
}) => {
  test.setTimeout(seconds(300));
  const name = 'idle.ipynb';
  const flag = new Flag('idle');
  let root = await train(page, name, training(new Flag('stop')));
  await test.step('an interrupted cell keeps its curves', async () => {
    await expectToMove(root);
    await command(page, 'notebook:interrupt-kernel');
    await expect(root.locator('.nbdist-badge')).toHaveText('interrupted');
    await save(page, name, 1, 'interrupted after');
    await expectInteractive(page, root);
    await kernelIs(page, 'idle');
  });
  await test.step('a reloaded page is live, idle kernel', async () => {
    root = await trainAgain(page, training(flag, '--async')[1]);
    await expectToMove(root);
    root = await reload(page, name);
    await finish(page, name, flag);
  });
  await test.step('a reloaded page is live, busy kernel', async () => {
    const last = new Flag('reload-busy');
    await open(page, name);
    root = await trainAgain(page, training(last)[1]);
    await expectToMove(root);
    root = await reload(page, name);
    await finish(page, name, last);
  });
});

test('a kernel is restarted, and killed: its curves stay, and nothing is left running', async ({
  page
}) => {
  test.setTimeout(seconds(300));
  const name = 'killed.ipynb';
  const cells = training(new Flag('killed'));
  cells[0] += '\nimport os; print(f"kernel {os.getpid()}")';
  let root = await train(page, name, cells);
  const badge = root.locator('.nbdist-badge');
  await test.step('a kernel is restarted', async () => {
    await expectToMove(root);
    await command(page, 'kernelmenu:restart');
    await page.getByRole('button', { name: 'Confirm Kernel Restart' }).click();
    // Which of the two depends on how much the kernel still does before it ends.
    await expect(badge).toHaveText(/interrupted|lost/, {
      timeout: seconds(60)
    });
    await expectInteractive(page, root);
    await save(page, name, 1, ' after ');
    await kernelIs(page, 'idle');
  });
  await test.step('a kernel is killed', async () => {
    root = await trainAgain(page, cells[1]);
    await expectToMove(root);
    const pid = await kernelPid(page);
    process.kill(pid, 'SIGKILL');
    await expect(badge).toHaveText('lost', { timeout: seconds(60) });
    await expect(root).toContainText(`Kernel died (pid ${pid})`);
    await expect(root).toContainText('Showing last known state');
    await expect(root).not.toContainText(' left');
    const dialog = page.getByRole('dialog'); // JupyterLab reports the death, too
    await dialog.getByRole('button', { name: 'Ok' }).click();
    await expectInteractive(page, root);
    await save(page, name, 1, 'lost after');
    await closeAndReopen(page, name);
    await expect(badge).toHaveText('lost');
    await expect(plot(root, 'loss')).toBeVisible();
  });
});

test('Notebook 7', async ({ page }) => {
  const far = strangers(page);
  const flag = new Flag('seven');
  await page.setViewportSize({ width: 700, height: 900 });
  const root = await train(page, 'seven.ipynb', training(flag), 'notebooks');
  await expectToMove(root);
  expect(await violations(page, '.nbdist-metrics')).toEqual([]);
  flag.raise();
  await expect(root.locator('.nbdist-badge')).toHaveText('done');
  await expectInteractive(page, root);
  expect(far).toEqual([]);
});
