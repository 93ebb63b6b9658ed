/** A page with only the widget's module, without Jupyter. It draws what a test sends. */

import { join, resolve } from 'node:path';
import { expect, type Locator, type Page } from '@playwright/test';
import { encode } from '../../labextension/tests/job';

const ROOT = resolve(__dirname, '../..');
const STATIC = join(ROOT, 'nbdist/widgets/static');
const VENV = process.env.NBDIST_TEST_VENV ?? '.venv';
const THEMES = join(ROOT, VENV, 'share/jupyter/lab/themes/@jupyterlab');
const HTML = `<!doctype html>
<html lang="en">
  <title>Chart</title>
  <link id="theme" rel="stylesheet" href="light.css">
  <link rel="stylesheet" href="metrics.css">
  <body style="background: var(--jp-layout-color0)">
    <main></main>
    <script type="module">
      import widget from './metrics.js';
      let state = new DataView(new ArrayBuffer(0));
      let changed = () => {};
      const model = { get: () => state, on: (_, call) => (changed = call), off: () => {} };
      window.send = bytes => {
        state = new DataView(new Uint8Array(bytes).buffer);
        changed();
      };
      window.leave = widget.render({ model, el: document.querySelector('main') });
    </script>
  </body>
</html>`;

declare global {
  interface Window {
    send: (bytes: number[]) => void;
    leave: () => void;
  }
}

export class Chart {
  constructor(readonly page: Page) {}

  async open(): Promise<void> {
    const files: Record<string, string> = {
      'metrics.js': join(STATIC, 'metrics.js'),
      'metrics.css': join(STATIC, 'metrics.css'),
      'light.css': join(THEMES, 'theme-light-extension/index.css'),
      'dark.css': join(THEMES, 'theme-dark-extension/index.css')
    };
    await this.page.route('http://chart.localhost/**', route => {
      const name = new URL(route.request().url()).pathname.slice(1);
      return name in files
        ? route.fulfill({ path: files[name] })
        : route.fulfill({ contentType: 'text/html', body: HTML });
    });
    await this.page.goto('http://chart.localhost/');
    await this.page.waitForFunction(() => 'leave' in window);
  }

  /** Send a state, and wait until it is drawn. */
  async send(...state: Parameters<typeof encode>): Promise<void> {
    await this.page.evaluate(
      bytes => {
        window.send(bytes);
      },
      [...encode(...state)]
    );
    await this.page.evaluate(
      () =>
        new Promise(resolve => {
          requestAnimationFrame(() =>
            requestAnimationFrame(() => setTimeout(resolve, 50))
          );
        })
    );
  }

  async theme(name: 'light' | 'dark'): Promise<void> {
    await this.page.evaluate(name => {
      document.querySelector<HTMLLinkElement>('#theme')!.href = `${name}.css`;
      document.body.dataset.jpThemeLight = String(name === 'light');
    }, name);
    await expect(this.root).toHaveClass(
      name === 'dark' ? /nbdist-dark/ : /nbdist-metrics$/
    );
  }

  get root(): Locator {
    return this.page.getByRole('region', { name: 'Live metrics' });
  }

  /** The chart of a panel, which reads its values by the arrow keys. */
  plot(title: string): Locator {
    return plot(this.root, title);
  }

  tip(): Locator {
    return tip(this.root);
  }

  button(name: string): Locator {
    return this.root.getByRole('button', { name });
  }
}

export function plot(root: Locator, title: string): Locator {
  return root.getByRole('slider', { name: `${title}: values by step` });
}

/** The tooltip beside the cursor. */
export function tip(root: Locator): Locator {
  return root.locator('.nbdist-tip:visible');
}

/** Put the mouse over a chart, at a fraction of its width and height. */
export async function hover(
  chart: Locator,
  across: number,
  down = 0.5
): Promise<void> {
  const { x, y, width, height } = (await chart
    .locator('.u-over')
    .boundingBox())!;
  await chart.page().mouse.move(x + width * across - 1, y + height * down);
  await chart.page().mouse.move(x + width * across, y + height * down);
}

/** Select a range of a chart with the mouse. */
export async function drag(
  chart: Locator,
  from: number,
  to: number
): Promise<void> {
  await hover(chart, from);
  await chart.page().mouse.down();
  await hover(chart, to);
  await chart.page().mouse.up();
}
