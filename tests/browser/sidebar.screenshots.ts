/** Takes the pictures of the sidebar for the README and the tutorial. */

import { join } from 'node:path';
import { expect, test, type Locator, type Page } from '@playwright/test';
import { command, endKernels, open, upload } from './jupyter';
import { seconds } from './limits';
import { DOCS, take } from './picture';
import { Sidebar } from './sidebar';

const SLOW = { timeout: seconds(60) };
const LOAD = '%load_ext nbdist';
const SOON = `%env NBDIST_HANG_SECONDS=3\n${LOAD}`;
const MODEL = `%%distributed -np 2 --backend ddp --env OMP_NUM_THREADS=1
import nbdist, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
target = torch.arange(8.0)

def step():
    x = torch.randn(4096, 8)
    loss = (model(x).squeeze(1) - x @ target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return {"loss": loss, "lr": 0.001}`;
const TRAIN = `%%distributed
for epoch in nbdist.progress(range(40), "epochs"):
    for _ in nbdist.progress(range(250), "steps"):
        nbdist.log(step())`;
const MISMATCH = `%%distributed
if rank == 0:
    dist.all_reduce(torch.ones(4))
else:
    dist.barrier()`;
const HANG = `%%distributed
import time

def download():
    time.sleep(1000)

if rank == 1:
    download()
step()`;
const DIES = `%%distributed
import os, signal

if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
step()`;

/** Run these cells, after the cells that make the model, with the panel open. */
async function run(
  page: Page,
  name: string,
  cells: string[],
  load = LOAD
): Promise<Sidebar> {
  await upload(page, name, [load, MODEL, ...cells]);
  await open(page, name);
  await page.addStyleTag({ content: '.Toastify { display: none }' });
  const sidebar = new Sidebar(page);
  await sidebar.open();
  await widen(page);
  await command(page, 'notebook:run-all-cells');
  return sidebar;
}

/** Give the panel a width that a user would choose. */
async function widen(page: Page): Promise<void> {
  const handle = page.locator('#jp-main-split-panel > .lm-SplitPanel-handle');
  const box = (await handle.first().boundingBox())!;
  await page.mouse.move(box.x + box.width / 2, box.y + 300);
  await page.mouse.down();
  await page.mouse.move(box.x + 90, box.y + 300, { steps: 5 });
  await page.mouse.up();
}

/** Take a picture of the panel from its head to its last row. */
async function panel(sidebar: Sidebar, file: string): Promise<void> {
  await take(sidebar.root, file, { rows: sidebar.cluster() });
}

/** Shorten the paths of Python on this machine. */
async function shorten(part: Locator): Promise<void> {
  await part.evaluate(root => {
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode as Text;
      node.data = node.data.replace(/"\S*\/site-packages\//g, '"…/');
    }
  });
}

test.afterEach(async ({ page, request }) => {
  await page.close();
  await endKernels(request);
});

test('training', async ({ page }) => {
  const sidebar = await run(page, 'digits.ipynb', [TRAIN]);
  const epochs: Locator = sidebar.root.getByRole('progressbar', {
    name: 'epochs'
  });
  await expect
    .poll(async () => Number(await epochs.getAttribute('value')), SLOW)
    .toBeGreaterThan(9);
  await expect(page.getByText('2/2 ranks busy')).toBeVisible();
  await page.mouse.move(700, 850);
  await page.screenshot({ path: join(DOCS, 'sidebar.png') });
});

test('hang', async ({ page }) => {
  const sidebar = await run(page, 'hang.ipynb', [MISMATCH], SOON);
  await expect(sidebar.root).toContainText('Possible hang', SLOW);
  await panel(sidebar, 'sidebar-hang.png');
});

test('stacks', async ({ page }) => {
  const sidebar = await run(page, 'hang.ipynb', [HANG]);
  await expect(sidebar.rank(0)).toContainText(/in all_reduce .*for \d/, SLOW);
  await sidebar.button('Show stack traces of Cluster 1').click();
  const stacks = page.getByRole('region', { name: /^Stack traces: Cluster 1/ });
  await expect(stacks).toContainText('time.sleep(1000)');
  await shorten(stacks);
  await take(stacks, 'sidebar-stacks.png');
});

test('dead', async ({ page }) => {
  const sidebar = await run(page, 'dead.ipynb', [DIES]);
  await expect(sidebar.rank(1)).toContainText('SIGKILL', SLOW);
  await expect(sidebar.cluster()).toContainText('failed');
  await panel(sidebar, 'sidebar-dead.png');
});
