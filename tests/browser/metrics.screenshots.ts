/** Takes the README's pictures of a real training in JupyterLab. */

import { expect, test, type Locator, type Page } from '@playwright/test';
import { hover, plot, tip } from './chart';
import { command, endKernels, metrics, open, upload } from './jupyter';
import { seconds } from './limits';
import { take } from './picture';

const PREPARE = `%%distributed -np 2 --backend ddp --env OMP_NUM_THREADS=1
import nbdist, torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 40
torch.manual_seed(rank)
pixels, digits = (torch.tensor(each) for each in load_digits(return_X_y=True))
pixels = pixels.float().div(16).view(-1, 1, 8, 8)
data = TensorDataset(pixels[rank:1400:2], digits[rank:1400:2])
loader = DataLoader(data, 32, shuffle=True)
net = nn.Sequential(
    nn.Conv2d(1, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 96, 3, padding=1), nn.ReLU(),
    nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(96 * 16, 10),
)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, weight_decay=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.03, EPOCHS * len(loader))

def scores(part, out, labels):
    return {
        f"{part}/loss": F.cross_entropy(out, labels),
        f"{part}/accuracy": (out.argmax(1) == labels).float().mean(),
    }

def train(images, labels):
    found = scores("train", model(images), labels)
    optimizer.zero_grad()
    found["train/loss"].backward()
    found["grad/norm"] = nn.utils.clip_grad_norm_(net.parameters(), 10)
    optimizer.step()
    schedule.step()
    return {**found, "lr": schedule.get_last_lr()[0]}

def validate():
    with torch.no_grad():
        out = net.eval()(pixels[1400 + rank :: 2])
    net.train()
    return scores("val", out, digits[1400 + rank :: 2])`;

const TRAIN = `%%distributed
for epoch in nbdist.progress(range(EPOCHS), "epochs"):
    for images, labels in nbdist.progress(loader, "batches"):
        nbdist.log(train(images, labels))
    nbdist.log(validate(), step=(epoch + 1) * len(loader))`;

/** Train, and wait until this percentage is done. */
async function train(
  page: Page,
  name: string,
  percent: number
): Promise<Locator> {
  await upload(page, name, ['%load_ext nbdist', PREPARE, TRAIN]);
  await open(page, name);
  await page.addStyleTag({ content: '.Toastify { display: none }' });
  await command(page, 'application:toggle-left-area');
  await command(page, 'notebook:run-all-cells');
  const root = metrics(page);
  await expect(plot(root, 'loss')).toBeVisible({ timeout: seconds(60) });
  // Move the selection away from the cell.
  await command(page, 'notebook:move-cursor-up');
  await command(page, 'notebook:move-cursor-up');
  const epochs = root.getByRole('progressbar', { name: 'epochs' });
  await expect
    .poll(async () => Number(await epochs.getAttribute('aria-valuenow')), {
      intervals: [200],
      timeout: seconds(60)
    })
    .toBeGreaterThanOrEqual(percent);
  return root;
}

test.afterEach(async ({ request }) => {
  await endKernels(request);
});

test('light', async ({ page }) => {
  const root = await train(page, 'digits.ipynb', 50);
  await hover(plot(root, 'loss'), 0.21, 0.3);
  await expect(tip(root)).toContainText('val');
  // Other work on this machine may make one rank the slowest for a while.
  await expect(root).not.toContainText('slowest', { timeout: seconds(15) });
  await take(page.locator('.jp-CodeCell').last(), 'metrics.png');
});

test('dark', async ({ page }) => {
  const root = await train(page, 'digits-dark.ipynb', 25);
  await command(page, 'apputils:change-theme', { theme: 'JupyterLab Dark' });
  await expect(root).toHaveClass(/nbdist-dark/);
  await root.getByRole('button', { name: 'Per rank' }).click();
  await hover(plot(root, 'loss'), 0.21, 0.3);
  await expect(tip(root)).toContainText('rank 1');
  await take(root, 'metrics-dark.png');
});
