/** Measures for `benchmarks/page.py` what the page costs, and how soon it shows a chart. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, test, type CDPSession } from '@playwright/test';
import {
  command,
  endKernels,
  kernelIs,
  metrics,
  open,
  save,
  upload
} from './jupyter';
import { seconds } from './limits';

const ROOT = resolve(__dirname, '../..');
const HOME = process.env.NBDIST_TEST_HOME!;
const PYTHON = join(
  ROOT,
  process.env.NBDIST_TEST_VENV ?? '.venv',
  'bin/python'
);
const FIGURES = process.env.NBDIST_TEST_FIGURES!;
const TURNS = Number(process.env.NBDIST_TEST_TURNS);
/** Ticks a second of the system's counters of processor time. */
const TICKS = 100;
/** How long one measurement takes, in milliseconds: longer than a server's pauses with many ranks. */
const WINDOW = 10_000;
const MIME = 'application/vnd.nbdist.metrics+json';

/** The last lines of a cell that logs ten metrics twenty times a second. */
const TRAINING = `for step in nbdist.progress(range(LENGTH), "steps"):
    nbdist.log({f"metric{i}": 2 / (1 + step / 50) + rank / 4 + i for i in range(10)}, step=step)
    time.sleep(0.05)`;

function tell(figure: string, value: number): void {
  appendFileSync(FIGURES, `${JSON.stringify({ figure, value })}\n`);
}

test.afterEach(async ({ request }) => {
  await endKernels(request);
});

test('from the start of a cell to its first chart, and what is saved', async ({
  page
}) => {
  const train = `%%distributed\n${TRAINING.replace('LENGTH', '100')}`;
  await upload(page, 'first.ipynb', [
    '%load_ext nbdist',
    '%%distributed -np 2 --backend none\nimport time, nbdist',
    ...Array<string>(TURNS).fill(train)
  ]);
  await open(page, 'first.ipynb');
  for (let cell = 0; cell < 2 + TURNS; cell++) {
    const took = page.evaluate(firstCurve);
    await command(page, 'notebook:run-cell-and-select-next');
    if (cell < 2) {
      await expect(
        page.locator('.jp-InputPrompt', { hasText: `[${cell + 1}]:` })
      ).toBeVisible({ timeout: seconds(60) });
      continue;
    }
    tell('first', (await took) / 1e3);
    await expect(
      page.locator('.jp-InputPrompt', { hasText: `[${cell + 1}]:` })
    ).toBeVisible({ timeout: seconds(60) });
    await kernelIs(page, 'idle');
  }
  const outputs = await save(page, 'first.ipynb', 1 + TURNS, MIME);
  const [output] = JSON.parse(outputs) as { data: Record<string, unknown> }[];
  tell('saved', JSON.stringify(output.data).length / 1e3);
  const html = [output.data['text/html']].flat().join('');
  const picture = /data:image\/png;base64,[\w+/=]*/.exec(html)![0];
  tell('picture', picture.length / 1e3);
  const kept = output.data[MIME] as { state: string };
  tell('curves', kept.state.length / 1e3);
});

/** Runs in the page: wait until the running cell has drawn a chart; return the milliseconds. */
function firstCurve(): Promise<number> {
  const began = performance.now();
  const there = (): boolean =>
    [...document.querySelectorAll('.nbdist-metrics .u-over')].some(chart =>
      chart
        .closest('.jp-CodeCell')
        ?.querySelector('.jp-InputPrompt')
        ?.textContent.includes('[*]')
    );
  return new Promise(resolve => {
    const look = (): void => {
      if (there()) {
        // The chart is on the screen with the next frame.
        requestAnimationFrame(() => {
          resolve(performance.now() - began);
        });
      } else {
        requestAnimationFrame(look);
      }
    };
    look();
  });
}

for (const ranks of [2, 16, 64]) {
  test(`${ranks} ranks that log`, async ({ page, browser }) => {
    const job = await ranksThatLog(ranks);
    try {
      let bytes = 0;
      page.on('websocket', socket => {
        socket.on('framereceived', ({ payload }) => {
          bytes += payload.length;
        });
      });
      const state = { version: 2, ...job.place, state: '' };
      const output = {
        output_type: 'display_data',
        data: { [MIME]: state, 'text/plain': '' },
        metadata: {}
      };
      await upload(page, `${ranks}.ipynb`, ['# a cell'], [output]);
      await open(page, `${ranks}.ipynb`);
      await expect(metrics(page).getByRole('slider').first()).toBeVisible({
        timeout: seconds(60)
      });
      await page.waitForTimeout(5000); // the first drawing is not measured
      const session = await browser.newBrowserCDPSession();
      for (let turn = 0; turn < TURNS; turn++) {
        const before = await spent(session);
        bytes = 0;
        const began = performance.now();
        await page.waitForTimeout(WINDOW);
        const took = (performance.now() - began) / 1e3;
        const after = await spent(session);
        tell(`page ${ranks}`, (100 * (after.page - before.page)) / took);
        tell(`server ${ranks}`, (100 * (after.server - before.server)) / took);
        tell(`bytes ${ranks}`, bytes / took / 1e3);
      }
    } finally {
      await job.end();
    }
  });
}

/** Start a process that writes as ranks would; return the job's folder, and a function that ends it. */
async function ranksThatLog(
  ranks: number
): Promise<{ place: object; end: () => Promise<void> }> {
  const writer = spawn(PYTHON, ['-m', 'benchmarks.streaming', String(ranks)], {
    cwd: ROOT,
    env: { ...process.env, JUPYTER_RUNTIME_DIR: join(HOME, 'runtime') },
    stdio: ['pipe', 'pipe', 'inherit']
  });
  const [line] = (await once(
    createInterface({ input: writer.stdout }),
    'line'
  )) as string[];
  return {
    place: JSON.parse(line) as object,
    end: async () => {
      const over = once(writer, 'exit');
      writer.stdin.end();
      await over;
    }
  };
}

/** Processor seconds of the page's process and of the server's. */
async function spent(
  session: CDPSession
): Promise<{ page: number; server: number }> {
  const { processInfo } = await session.send('SystemInfo.getProcessInfo');
  const page = processInfo
    .filter(({ type }) => type === 'renderer')
    .reduce((sum, { cpuTime }) => sum + cpuTime, 0);
  const [name] = readdirSync(join(HOME, 'runtime')).filter(file =>
    /^jpserver-\d+\.json$/.test(file)
  );
  const pid = /\d+/.exec(name)![0];
  const stat = readFileSync(`/proc/${pid}/stat`, 'ascii');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return { page, server: (Number(fields[11]) + Number(fields[12])) / TICKS };
}
