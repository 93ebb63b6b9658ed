/** The HTML for front ends without nbdist's extension can be read on every background. */

import { execFileSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { expect } from '@playwright/test';
import { test, violations } from './jupyter';

const ROOT = resolve(__dirname, '../..');
const PYTHON = join(
  ROOT,
  process.env.NBDIST_TEST_VENV ?? '.venv',
  'bin/python'
);

/** The output of a cell: a picture with its tables, a comparison and a line of nbdist. */
const HTML = `
from nbdist.magics.showing.job_output import bundle
from nbdist.metrics.loader_speed_table import Reading, Row
from nbdist.widgets import metrics_picture as picture
from tests.test_picture import curve, seen_of
reading = Reading([Row(1, 2, 1.0, 0.1, 20.0, 3.0), Row(2, 2, 0.5, 0.1, 40.0, 6.0)], ["a note"])
print(picture.as_html(seen_of([curve("loss", 3, 2, 1)]), "", 1), reading._repr_html_())
print(bundle("Brought to 2 ranks")["text/html"])
`;

/** Styles of front ends. VS Code gives the text no colour, but has a variable with its colour. */
const STYLES = {
  'a light page that says nothing': '',
  "VS Code's dark theme": `:root { --vscode-editor-foreground: #d4d4d4 } body { background: #1e1e1e }`,
  "JupyterLab's dark theme": `:root { --jp-content-font-color1: #e0e0e0 }
    body { background: #111111; color: #e0e0e0 }
    tbody tr:nth-child(odd) { background: #111111 }
    tbody tr:nth-child(even) { background: #212121 }`
};

let html: string;

test.beforeAll(() => {
  html = execFileSync(PYTHON, ['-c', HTML], { cwd: ROOT, encoding: 'utf8' });
});

for (const [name, style] of Object.entries(STYLES)) {
  test(`our HTML can be read on ${name}`, async ({ page }) => {
    await page.setContent(
      `<html lang="en"><title>Cell</title><style>${style}</style><main>${html}</main></html>`
    );
    await expect(page.getByRole('table')).toHaveCount(3);
    expect(await violations(page, 'main')).toEqual([]);
  });
}
