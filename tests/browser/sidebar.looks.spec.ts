/** How the panel shows invented states, and its use by keyboard. */

import { expect, type Page } from '@playwright/test';
import {
  command,
  endKernels,
  open,
  openLab,
  test,
  upload,
  violations
} from './jupyter';
import { Sidebar } from './sidebar';
import { cluster, everything, Fake, job, process, rank, state } from './state';

let fake: Fake;
let sidebar: Sidebar;
/** Whether the page was loaded for the present test. */
let fresh: boolean;

// JupyterLab is loaded once, unless a test has left it. Open tabs are closed before each test.
test.beforeEach(async ({ page }) => {
  fake = new Fake(page);
  await fake.open();
  sidebar = new Sidebar(page);
  fresh = new URL(page.url()).pathname !== '/lab';
  if (!fresh) {
    await command(page, 'application:close-all');
    await command(page, 'nbdist:refresh');
    await expect(sidebar.rank(0)).toHaveCount(0);
  } else {
    await openLab(page);
  }
});

test('all of it by keyboard', async ({ page }) => {
  if (!fresh) {
    await openLab(page); // the keys begin at what had the focus before
  }
  fake.state = state([
    process({ clusters: [cluster([rank(0), rank(1)])], jobs: [job()] })
  ]);
  await command(page, 'nbdist:show');
  await expect(sidebar.rank(1)).toBeVisible();
  await expect(sidebar.button('Start a cluster…')).toBeFocused();
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await expect(sidebar.button('Refresh')).toBeFocused();
  await page.keyboard.press('Tab');
  await expect(sidebar.section('Notebooks')).toBeFocused();
  for (let i = 0; i < 2; i++) {
    await page.keyboard.press('Tab');
  }
  await expect(
    sidebar.cluster().getByRole('button', { name: 'Cluster 1', exact: true })
  ).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(sidebar.rank(0)).toHaveCount(0);
  await page.keyboard.press('Enter');
  await expect(sidebar.rank(0)).toBeVisible();
  for (let i = 0; i < 3; i++) {
    await page.keyboard.press('Tab');
  }
  await expect(sidebar.button('Stop Cluster 1')).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('dialog')).toContainText(
    'Stop Cluster 1 of train.ipynb'
  );
  await page.keyboard.press('Escape');
  await expect(page.getByRole('dialog')).toHaveCount(0);
  expect(fake.asked).toEqual([]);
  await sidebar.button('Stop Cluster 1').press('Enter');
  await expect(
    page.getByRole('dialog').getByRole('button', { name: 'Stop' })
  ).toBeFocused();
  await page.keyboard.press('Enter');
  await expect
    .poll(() => fake.asked)
    .toEqual(['POST processes/a1/stop {"cluster":"1"}']);
});

test('all there is to see, in words', async () => {
  fake.state = everything();
  await sidebar.open();
  const { root } = sidebar;
  await expect(sidebar.rank(0)).toContainText('running cell line 12');
  await expect(sidebar.rank(0)).toContainText('GPU 88 %');
  await expect(sidebar.rank(0)).toContainText('GPU memory 12 GB');
  await expect(sidebar.rank(1)).toContainText('in all_reduce for 12 s');
  await expect(sidebar.rank(1)).toContainText('elsewhere');
  await expect(sidebar.rank(2)).toContainText('killed by SIGKILL');
  await expect(sidebar.rank(3)).toContainText('idle');
  await expect(sidebar.job('2')).toContainText('Rank 0 failed: ValueError');
  await expect(sidebar.job('3')).toContainText('312 of 1000');
  await expect(sidebar.job('3')).toContainText('Possible hang: rank 0');
  await expect(sidebar.job('3')).toContainText('train/loss0.123');
  await expect(root).toContainText('Job 7f3a');
  await sidebar.section('Dead kernels').click();
  await expect(root).toContainText(
    'Kernel died (pid 40000): 1 rank still running'
  );
  await sidebar.button('Details of old.ipynb').click();
  await expect(sidebar.cluster('Cluster 5')).toContainText(
    'last seen: line 12'
  );
  await expect(root).toContainText(
    /deadbeef cannot be read: it was written by another version/
  );
});

for (const theme of ['Dark', 'Light']) {
  test(`anyone can use it, ${theme}`, async ({ page }) => {
    fake.state = everything();
    fake.answers['processes/a1/stacks'] = {
      stacks: {
        0: 'main thread:\n  File "Cell In[3]", line 4, in <module>\n    x\n',
        1: 'y'
      }
    };
    fake.answers['processes/a1/logs/3/0'] = {
      text: 'one\ntwo\n',
      from: 9,
      to: 17,
      size: 17
    };
    await command(page, 'apputils:change-theme', {
      theme: `JupyterLab ${theme}`
    });
    await expect(page.locator('body')).toHaveAttribute(
      'data-jp-theme-light',
      String(theme === 'Light')
    );
    await sidebar.open();
    await expect(sidebar.rank(3)).toBeVisible();
    expect(await violations(page, '#nbdist-panel')).toEqual([]);
    await sidebar
      .cluster()
      .first()
      .getByRole('button', { name: /^Show stack traces of Cluster 1/ })
      .click();
    await expect(page.locator('.jp-NbdistStack mark').first()).toBeVisible();
    expect(await violations(page, '[id^=nbdist-stacks-]')).toEqual([]);
    await sidebar.button('Open the log of rank 0').first().click();
    await page.getByRole('searchbox', { name: 'Search the log' }).fill('two');
    await expect(page.getByRole('log')).toContainText('two');
    expect(await violations(page, '[id^=nbdist-log-]')).toEqual([]);
  });
}

test('a log: its colours, a search from the first match on, and notes on what is not shown', async ({
  page
}) => {
  fake.state = state([
    process({ clusters: [cluster([rank(0), rank(1)])], jobs: [job()] })
  ]);
  const lines = Array.from({ length: 500 }, (_, i) =>
    i % 100 === 50 ? `\u001b[31mLoss ${i}\u001b[0m` : `step ${i}`
  );
  const text = `${lines.join('\n')}\n`;
  fake.answers['processes/a1/logs/3/0'] = {
    text,
    from: 7e6,
    to: 7e6 + text.length,
    size: 7e6 + text.length
  };
  fake.answers['processes/a1/logs/3/1'] = { text: '', from: 0, to: 0, size: 0 };
  await sidebar.open();
  await sidebar.button('Open the log of rank 0').first().click();
  const view = page.locator('[id^=nbdist-log-]').first();
  await expect(view).toContainText('Earlier output (7 MB) hidden');
  const search = view.getByRole('searchbox');
  await search.fill('loss');
  await expect(view.getByRole('status')).toHaveText('5 lines found');
  for (const [key, said, line] of [
    ['Enter', '1 of 5', 'Loss 50'],
    ['Enter', '2 of 5', 'Loss 150'],
    ['Shift+Enter', '1 of 5', 'Loss 50'],
    ['Shift+Enter', '5 of 5', 'Loss 450']
  ]) {
    await search.press(key);
    await expect(view.getByRole('status')).toHaveText(said);
    await expect(view.locator('.jp-mod-current')).toHaveText(line);
    await expect(view.locator('.jp-mod-current mark')).toHaveText('Loss');
    await expect(view.locator('.jp-mod-current')).toBeInViewport();
  }
  await expect(view.locator('.jp-mod-current .ansi-red-fg').first()).toHaveCSS(
    'color',
    'rgb(231, 92, 88)'
  );
  await sidebar.button('Open the log of rank 1').first().click();
  await expect(page.locator('[id^=nbdist-log-]').last()).toContainText(
    'Rank 1 has printed nothing yet.'
  );
});

test('why there is nothing to see', async ({ page }) => {
  fake.status = 404;
  await sidebar.open();
  await expect(sidebar.root).toContainText('The Jupyter server has no nbdist');
  expect(await violations(page, '#nbdist-panel')).toEqual([]);
  fake.status = 403;
  await sidebar.button('Refresh').click();
  await expect(sidebar.root).toContainText('Log in again');
  fake.status = 200;
  fake.state = state([]);
  await sidebar.button('Refresh').click();
  await expect(sidebar.root).toContainText('No cluster yet');
  expect(await violations(page, '#nbdist-panel')).toEqual([]);
  fake.state = everything();
  await expect(sidebar.rank(0)).toBeVisible();
  fake.status = 0;
  await expect(sidebar.root).toContainText('cannot be reached');
  await expect(sidebar.root).toContainText('Showing last known state');
  await expect(sidebar.rank(0)).toBeVisible();
});

test('a command without arguments asks which', async ({ page }) => {
  fake.state = state([
    process({ clusters: [cluster([rank(0)])] }),
    process({
      id: 'b2',
      notebook: '/home/me/other.ipynb',
      clusters: [cluster([rank(0), rank(1)], { id: '4' })]
    })
  ]);
  await sidebar.open();
  await expect(sidebar.rank(0)).toBeVisible();
  await command(page, 'nbdist:restart-rank');
  const dialog = page.getByRole('dialog');
  await expect(dialog).toContainText('Restart a rank of which cluster?');
  await dialog
    .locator('select')
    .selectOption({ label: '2. Cluster 4 of other.ipynb (2 ranks)' });
  await dialog.getByRole('button', { name: 'Ok' }).click();
  await expect(dialog).toContainText('Restart which rank?');
  await dialog.locator('select').selectOption({ index: 1 });
  await dialog.getByRole('button', { name: 'Ok' }).click();
  await expect(dialog).toContainText(
    'Its process will be terminated and its variables lost'
  );
  fake.answers['processes/b2/restart'] = { lacks: ['x', 'model'] };
  await sidebar.accept('Restart');
  await expect
    .poll(() => fake.asked)
    .toEqual(['POST processes/b2/restart {"cluster":"4","rank":1}']);
  await expect(
    page.getByText(
      'Rank 1 restarted, missing: x, model (re-run the cells that define them)'
    )
  ).toBeVisible();
});

test('a refused command shows the reason', async ({ page }) => {
  fake.state = state([
    process({ clusters: [cluster([rank(0)])], jobs: [job()] })
  ]);
  fake.refusals['processes/a1/interrupt'] = 'process 40000 does not answer';
  await sidebar.open();
  await sidebar.button('Interrupt Job 3').click();
  await expect(page.getByText('process 40000 does not answer')).toBeVisible();
});

test('settings are followed', async ({ page }) => {
  fake.state = everything();
  await sidebar.open();
  await expect(sidebar.rank(0).locator('svg path').nth(1)).toHaveCount(1);
  await expect(sidebar.job('3')).toContainText('train/loss');
  await choose(page, {
    showMetrics: false,
    showEnded: false,
    showStatusBar: false
  });
  try {
    await openLab(page);
    await sidebar.open();
    await expect(sidebar.job('3')).toBeVisible();
    await expect(sidebar.job('3')).not.toContainText('train/loss');
    await expect(sidebar.job('2')).toHaveCount(0);
    await expect(page.getByText('ranks busy')).toBeHidden();
  } finally {
    await choose(page, {});
  }
});

test('the notebook in front is first, others and dead kernels are collapsed', async ({
  page,
  request
}) => {
  await upload(page, 'front.ipynb', ['1\n2\n3', 'train()']);
  await open(page, 'front.ipynb');
  const kernel = await page.evaluate(
    () =>
      window.jupyterapp.shell.currentWidget!.sessionContext!.session!.kernel!.id
  );
  const own = job({ first_line: '1', number: 1 });
  fake.state = state([
    process({ clusters: [cluster([rank(0)], { id: '8' })] }),
    process({
      id: 'b2',
      kernel,
      clusters: [cluster([rank(0, { words: 'line 3' })])],
      jobs: [own]
    }),
    process({
      id: 'c3',
      notebook: '/home/me/old.ipynb',
      alive: false,
      left: 2,
      clusters: [cluster([rank(0), rank(1)], { id: '5' })]
    })
  ]);
  await sidebar.open();
  await expect(sidebar.rank(0)).toBeVisible();
  for (const [name, expanded] of [
    ['Current notebook', 'true'],
    ['Other notebooks', 'false'],
    ['Dead kernels', 'false']
  ]) {
    await expect(sidebar.section(name)).toHaveAttribute(
      'aria-expanded',
      expanded
    );
  }
  await expect(sidebar.cluster('Cluster 8')).toHaveCount(0);
  await sidebar.section('Other notebooks').click();
  await expect(sidebar.cluster('Cluster 8')).toBeVisible();

  // A click on a rank leads to its line.
  await sidebar.button('running cell line 3').click();
  await expect(page.locator('.jp-Cell.jp-mod-active')).toContainText('123');
  const line = (): Promise<number> =>
    page.evaluate(() => {
      interface INotebook {
        activeCell: {
          editor: { getSelection: () => { start: { line: number } } };
        };
      }
      const { content } = window.jupyterapp.shell.currentWidget as unknown as {
        content: INotebook;
      };
      return content.activeCell.editor.getSelection().start.line + 1;
    });
  await expect.poll(line).toBe(3);

  // Stopping the cluster of a dead kernel ends the ranks that still run, and reports that.
  await sidebar.section('Dead kernels').click();
  await sidebar.button('Details of old.ipynb').click();
  fake.answers['processes/c3/stop'] = { ended: 2, left: 0 };
  await sidebar.button('Stop Cluster 5').click();
  await sidebar.accept('Stop');
  await expect(page.getByText('Cluster 5: 2 ranks terminated')).toBeVisible();
  expect(fake.asked).toEqual(['POST processes/c3/stop {"cluster":"5"}']);
  await page.goto('about:blank');
  await endKernels(request);
});

test('Notebook 7 has the panel, too', async ({ page, request }) => {
  fake.state = everything();
  await upload(page, 'seven.ipynb', ['1']);
  await open(page, 'seven.ipynb', 'notebooks');
  await command(page, 'nbdist:show');
  await expect(sidebar.rank(1)).toContainText('in all_reduce for 12 s');
  fake.answers['processes/a1/logs/3/0'] = {
    text: 'one\ntwo\n',
    from: 0,
    to: 8,
    size: 8
  };
  await sidebar.button('Open the log of rank 0').first().click();
  await expect(page.getByRole('log')).toContainText('two');
  await page.goto('about:blank');
  await endKernels(request);
});

/** Change the user's settings. */
async function choose(page: Page, settings: object): Promise<void> {
  await page.evaluate(async raw => {
    const [, token] = /_xsrf=([^;]+)/.exec(document.cookie)!;
    const answer = await fetch('/lab/api/settings/nbdist:plugin', {
      method: 'PUT',
      body: JSON.stringify({ raw }),
      headers: { 'X-XSRFToken': token }
    });
    if (!answer.ok) {
      throw new Error(await answer.text());
    }
  }, JSON.stringify(settings));
}
