import { expect, test, type Locator, type Page } from '@playwright/test';
import { hover, plot, tip } from './chart';
import {
  command,
  endKernels,
  Flag,
  kernelIs,
  metrics,
  open,
  save,
  strangers,
  tellIfFailed,
  upload,
  violations
} from './jupyter';
import { seconds } from './limits';

/** Two ranks that log until the flag is raised; the mean of their losses at a step is `loss`. */
function training(flag: Flag, flags = ''): string[] {
  return [
    '%load_ext nbdist',
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

declare global {
  interface Window {
    /** A look of ipywidgets for a model, held back. */
    late?: { since: number; goOn: () => void };
  }
}

/** In a page: whether ipywidgets has made all widgets that the notebook's kernel has. */
async function widgetsAreRestored(): Promise<boolean> {
  interface Renderer {
    children: () => Iterable<Renderer>;
    _manager?: { promise: Promise<{ restoredStatus: boolean }> };
  }
  const look = (within: Renderer): Renderer['_manager'] => {
    const found = within._manager;
    return found ?? [...within.children()].map(look).find(each => each);
  };
  const panel = window.jupyterapp.shell.currentWidget as unknown as Renderer;
  return (await look(panel)?.promise)?.restoredStatus ?? false;
}

test.afterEach(async ({ page, request }) => {
  await tellIfFailed(page);
  await endKernels(request);
});

test('curves move while the cell is busy, and a picture stays', async ({
  page
}) => {
  const far = strangers(page);
  const flag = new Flag('busy');
  const root = await train(page, 'busy.ipynb', training(flag));
  await expectToMove(root);
  await expect(
    page.locator('.jp-InputPrompt', { hasText: '[*]' })
  ).toBeVisible();
  await expect(
    root.getByRole('progressbar', { name: 'steps' })
  ).not.toHaveAttribute('aria-valuenow', '0');
  await expect(root.locator('.nbdist-badge')).toHaveText('running');

  await expect(async () => {
    await hover(plot(root, 'loss'), 0.4);
    const told = (await tip(root).textContent())!;
    const step = Number(/^step (\d+)/.exec(told)?.[1]);
    expect(step, told).toBeGreaterThan(0);
    expect(told).toContain(String(Number(loss(step).toPrecision(6))));
  }).toPass({ timeout: seconds(30) }); // one rank may still lack a step that the other has

  expect(await violations(page, '.nbdist-metrics')).toEqual([]);
  await command(page, 'apputils:change-theme', { theme: 'JupyterLab Dark' });
  await expect(root).toHaveClass(/nbdist-dark/);
  expect(await violations(page, '.nbdist-metrics')).toEqual([]);
  await expectToMove(root);

  flag.raise();
  await expect(
    page.getByRole('img', { name: /Curves of train\/loss/ })
  ).toBeVisible();
  await expect(root).toHaveCount(0);
  await kernelIs(page, 'idle');
  expect(far).toEqual([]);
});

test('an interrupted cell leaves a picture that is saved', async ({ page }) => {
  const root = await train(page, 'stop.ipynb', training(new Flag('stop')));
  await expectToMove(root);
  await command(page, 'notebook:interrupt-kernel');
  await expect(
    page.getByRole('img', { name: /Curves of train\/loss/ })
  ).toBeVisible();
  await expect(page.getByText(/Job \d+ .*interrupted after/)).toBeVisible();
  const outputs = await save(page, 'stop.ipynb', 1, 'image/png');
  expect(outputs).not.toContain('widget-view');
});

for (const [flags, busy] of [
  ['--async', false],
  ['', true]
] as const) {
  test(`a reloaded page shows how it stands, ${busy ? 'busy' : 'idle'} kernel`, async ({
    page
  }) => {
    const name = `reload-${busy ? 'busy' : 'idle'}`;
    const flag = new Flag(name);
    let root = await train(page, `${name}.ipynb`, training(flag, flags));
    await expectToMove(root);
    await save(page, `${name}.ipynb`, 1, 'widget-view');
    const step = await lastStep(root);
    await page.reload();
    root = metrics(page);
    if (busy) {
      // JupyterLab asks a kernel for its widgets only when it is idle.
      await expect(page.getByText('Loading widget')).toBeVisible();
      flag.raise();
    }
    await expect(plot(root, 'loss')).toBeVisible({ timeout: seconds(60) });
    expect(await lastStep(root)).toBeGreaterThan(step);
    if (!busy) {
      await expectToMove(root);
      flag.raise();
    }
    await expect(root.locator('.nbdist-badge')).toHaveText('done');
  });
}

// ipywidgets looks for a model every 100 ms, gives up after two seconds without a last look, and does
// not look again if all widgets are restored by then. A busy page is late with such a look.
test('a reloaded page looks again for curves that it had given up', async ({
  page
}) => {
  const name = 'late.ipynb';
  const flag = new Flag('late');
  let root = await train(page, name, training(flag, '--async'));
  await save(page, name, 1, 'widget-view');
  await page.addInitScript(() => {
    const inTime = window.setTimeout;
    window.setTimeout = ((...args: Parameters<typeof inTime>) => {
      if (!new Error().stack?.includes('get_model')) {
        return inTime(...args);
      }
      window.late ??= { since: Date.now(), goOn: () => inTime(...args) };
    }) as typeof inTime;
  });
  const hasLooked = () =>
    page.waitForFunction(
      () => window.late && Date.now() - window.late.since > 2000
    );
  await page.routeWebSocket(/\/channels/, socket => {
    const server = socket.connectToServer();
    server.onMessage(async message => {
      if (message.includes('"update_states"')) {
        await hasLooked();
      }
      socket.send(message);
    });
  });
  await page.reload();
  root = metrics(page);
  await hasLooked();
  await page.waitForFunction(widgetsAreRestored);
  await page.evaluate(() => window.late!.goOn());
  await expect(plot(root, 'loss')).toBeVisible({ timeout: seconds(60) });
  await expectToMove(root);
  flag.raise();
  await expect(root.locator('.nbdist-badge')).toHaveText('done');
});

test('Notebook 7', async ({ page }) => {
  const far = strangers(page);
  const flag = new Flag('seven');
  await page.setViewportSize({ width: 700, height: 900 });
  const root = await train(page, 'seven.ipynb', training(flag), 'notebooks');
  await expectToMove(root);
  expect(await violations(page, '.nbdist-metrics')).toEqual([]);
  flag.raise();
  await expect(
    page.getByRole('img', { name: /Curves of train\/loss/ })
  ).toBeVisible();
  expect(far).toEqual([]);
});
