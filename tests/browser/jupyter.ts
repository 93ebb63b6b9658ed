/** Opens real notebooks in real pages, and finds what pages must not do. */

import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import AxeBuilder from '@axe-core/playwright';
import {
  test as base,
  expect,
  type APIRequestContext,
  type BrowserContext,
  type Locator,
  type Page
} from '@playwright/test';
import { seconds } from './limits';

const TOKEN = process.env.NBDIST_TEST_TOKEN!;
const HOME = process.env.NBDIST_TEST_HOME!;

/** A cell that loads nbdist; the ranks of its notebook cannot import torch, so they start sooner. */
export const LOAD_WITHOUT_TORCH = `import os
os.environ["PYTHONPATH"] = ${JSON.stringify(join(HOME, 'without-torch'))} + ":" + os.environ["PYTHONPATH"]
%load_ext nbdist`;

/** The part of JupyterLab's application that tests use; the server exposes it for tests. */
interface IApplication {
  restored: Promise<void>;
  commands: { execute: (id: string, args?: object) => Promise<unknown> };
  shell: {
    currentWidget: {
      content?: {
        activeCellIndex: number;
        widgets: {
          model: { sharedModel: { setSource: (source: string) => void } };
        }[];
      };
      sessionContext?: {
        session?: { kernel?: { id: string; status: string } | null } | null;
      };
    } | null;
  };
}

declare global {
  interface Window {
    jupyterapp: IApplication;
  }
}

/** A page, and the test file whose tests use it in turn. */
interface ITab {
  context: BrowserContext;
  page?: Page;
  file?: string;
}

/**
 * All tests of a file use one page, and all files share the browser's cache. Loading JupyterLab
 * mostly means loading its code, which a fresh page without a cache would do for every test.
 */
export const test = base.extend<object, { tab: ITab }>({
  tab: [
    async ({ browser }, use, { project }) => {
      const { baseURL, viewport } = project.use;
      const context = await browser.newContext({ baseURL, viewport });
      await use({ context });
      await context.close();
    },
    { scope: 'worker' }
  ],
  page: async ({ tab, viewport }, use, { file }) => {
    if (tab.file !== file || tab.page === undefined || tab.page.isClosed()) {
      await tab.page?.close();
      tab.page = await tab.context.newPage();
      tab.file = file;
    }
    const page = tab.page;
    await page.setViewportSize(viewport!);
    await page.mouse.move(0, 0);
    await use(page);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
  }
});

const AUTHORIZED = { Authorization: `token ${TOKEN}` };

/** Put a notebook of these cells into the server's folder; the first cell may have outputs. */
export async function upload(
  page: Page,
  name: string,
  cells: string[],
  outputs: object[] = []
): Promise<void> {
  const content = {
    cells: cells.map((source, i) => ({
      cell_type: 'code',
      execution_count: null,
      id: `cell-${i}`,
      metadata: {},
      outputs: i === 0 ? outputs : [],
      source
    })),
    metadata: {
      kernelspec: {
        name: 'python3',
        display_name: 'Python 3',
        language: 'python'
      }
    },
    nbformat: 4,
    nbformat_minor: 5
  };
  const answer = await page.request.put(`/api/contents/${name}`, {
    headers: AUTHORIZED,
    data: { type: 'notebook', format: 'json', content }
  });
  expect(answer.ok()).toBe(true);
}

/** Open a notebook, in `lab` or in Notebook 7 (`notebooks`), and wait for its kernel. */
export async function open(
  page: Page,
  name: string,
  where: 'lab' | 'notebooks' = 'lab'
): Promise<void> {
  const path = where === 'lab' ? `lab/tree/${name}` : `notebooks/${name}`;
  await page.goto(`/${path}?token=${TOKEN}&reset`);
  await kernelIs(page, 'idle');
}

/** Open JupyterLab without a notebook. */
export async function openLab(page: Page): Promise<void> {
  await page.goto(`/lab?token=${TOKEN}&reset`);
  await page.waitForFunction(() => 'jupyterapp' in window);
  await page.evaluate(() => window.jupyterapp.restored);
  // The launcher takes the focus when it appears, so wait for it.
  await expect(page.locator('.jp-Launcher')).toBeVisible();
}

export async function kernelIs(page: Page, status: string): Promise<void> {
  await page.waitForFunction(
    wanted =>
      window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel
        ?.status === wanted,
    status,
    { timeout: seconds(60) }
  );
}

/** Print the content of a page whose test has failed, for readers of CI, who have no screenshot. */
export async function tellIfFailed(page: Page): Promise<void> {
  const { status, expectedStatus } = test.info();
  if (status !== expectedStatus && !page.isClosed()) {
    console.log(await page.locator('body').ariaSnapshot());
  }
}

/** End all kernels, and remove what killed kernels have left. */
export async function endKernels(request: APIRequestContext): Promise<void> {
  const sessions = await request.get('/api/sessions', { headers: AUTHORIZED });
  for (const { id } of (await sessions.json()) as { id: string }[]) {
    await request.delete(`/api/sessions/${id}`, { headers: AUTHORIZED });
  }
  await request.post('/nbdist/api/clean', { headers: AUTHORIZED, data: {} });
}

/** Save the notebook until a word is in a cell's outputs; return these as JSON. */
export async function save(
  page: Page,
  name: string,
  cell: number,
  word: string
): Promise<string> {
  let outputs = '';
  await expect(async () => {
    // Wait until the file is saved: a server that reads a file while it writes it takes the file
    // for broken, and restores the old content, or loses both.
    await page.evaluate(() =>
      window.jupyterapp.commands.execute('docmanager:save')
    );
    const answer = await page.request.get(`/api/contents/${name}`, {
      headers: AUTHORIZED
    });
    expect(answer.ok(), await answer.text()).toBe(true);
    const { content } = (await answer.json()) as {
      content: { cells: { outputs: object[] }[] };
    };
    outputs = JSON.stringify(content.cells[cell].outputs);
    expect(outputs).toContain(word);
  }).toPass({ timeout: seconds(30) });
  return outputs;
}

/** Close the page's notebook, and open one in the same JupyterLab with no kernel of its own. */
export async function closeAndReopen(page: Page, name: string): Promise<void> {
  await page.evaluate(async () => {
    await window.jupyterapp.commands.execute('application:close-all');
  });
  await expect(metrics(page)).toHaveCount(0);
  await command(page, 'docmanager:open', {
    path: name,
    factory: 'Notebook',
    kernelPreference: { shouldStart: false, canStart: false }
  });
  await expect(metrics(page)).toBeVisible({ timeout: seconds(60) });
}

/** Copy a notebook so that its outputs are not trusted, as if another user had sent it. */
export async function copyUntrusted(
  page: Page,
  name: string,
  to: string
): Promise<void> {
  const answer = await page.request.get(`/api/contents/${name}`, {
    headers: AUTHORIZED
  });
  const { content } = (await answer.json()) as {
    content: {
      cells: { outputs: object[]; metadata: { trusted?: boolean } }[];
    };
  };
  for (const cell of content.cells) {
    delete cell.metadata.trusted;
  }
  // As a plain file: the server trusts a notebook that it saves as one.
  const put = await page.request.put(`/api/contents/${to}`, {
    headers: AUTHORIZED,
    data: { type: 'file', format: 'text', content: JSON.stringify(content) }
  });
  expect(put.ok()).toBe(true);
}

/** A file that cells wait for, so that a test decides how long they run. */
export class Flag {
  constructor(name: string) {
    mkdirSync(join(HOME, 'flags'), { recursive: true });
    this.path = join(HOME, 'flags', name);
    rmSync(this.path, { force: true }); // the same test may have run before
  }

  readonly path: string;

  raise(): void {
    writeFileSync(this.path, '');
  }
}

/** Execute a command of the application, without waiting for its end. */
export async function command(
  page: Page,
  id: string,
  args: object = {}
): Promise<void> {
  await page.evaluate(
    ([id, args]) => {
      void window.jupyterapp.commands.execute(id as string, args as object);
    },
    [id, args]
  );
}

/** Run a cell of the notebook in front, without waiting for its end. */
export async function runCell(page: Page, index: number): Promise<void> {
  await page.evaluate(index => {
    const { commands, shell } = window.jupyterapp;
    shell.currentWidget!.content!.activeCellIndex = index;
    void commands.execute('notebook:run-cell');
  }, index);
}

/** The view of the live metrics. */
export function metrics(page: Page): Locator {
  return page.getByRole('region', { name: 'Live metrics' });
}

/** Collect the addresses of all requests of a page to other machines. */
export function strangers(page: Page): string[] {
  const found: string[] = [];
  const look = (url: string): void => {
    const { protocol, hostname } = new URL(url);
    if (/^(http|ws)/.test(protocol) && hostname !== '127.0.0.1') {
      found.push(url);
    }
  };
  page.on('request', request => look(request.url()));
  page.on('websocket', socket => look(socket.url()));
  return found;
}

/** What axe finds inaccessible in a part of a page. */
export async function violations(page: Page, part: string): Promise<string[]> {
  const found = await new AxeBuilder({ page })
    .include(part)
    // Only frames of other servers need the other mode; these pages have none.
    .setLegacyMode(true)
    // Without long results about what is right.
    .options({ resultTypes: ['violations'] })
    .analyze();
  return found.violations.map(
    each =>
      `${each.id}: ${each.nodes.map(node => node.failureSummary).join('; ')}`
  );
}
