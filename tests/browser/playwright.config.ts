import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  symlinkSync,
  writeFileSync
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { defineConfig } from '@playwright/test';
import { seconds } from './limits';

const ROOT = resolve(__dirname, '../..');
const VENV = process.env.NBDIST_TEST_VENV ?? '.venv';
const PYTHON = join(ROOT, VENV, 'bin/python');
// From the tests' own range: another process might take a port that the system has chosen.
const FREE_PORT =
  'from tests.helpers.kernel import free_port; print(free_port())';

// Every worker reads this file, too, and must get the values of the first process.
process.env.NBDIST_TEST_TOKEN ??= randomUUID();
process.env.NBDIST_TEST_PORT ??= execFileSync(PYTHON, ['-c', FREE_PORT], {
  encoding: 'utf8',
  cwd: ROOT
}).trim();
process.env.NBDIST_TEST_HOME ??= mkdtempSync(join(tmpdir(), 'nbdist-browser-'));

const port = process.env.NBDIST_TEST_PORT;
const home = process.env.NBDIST_TEST_HOME;
if (process.env.TEST_WORKER_INDEX === undefined) {
  mkdirSync(join(home, 'notebooks'), { recursive: true });
  // Installed as `pip install` does it, so that this checkout is tested, not an installed nbdist.
  const enabled = join(home, 'config/jupyter_server_config.d');
  mkdirSync(enabled, { recursive: true });
  copyFileSync(
    join(ROOT, 'labextension/server-config.json'),
    join(enabled, 'nbdist.json')
  );
  // JupyterLab need not look whether its own packages are to be built anew: that takes seconds.
  mkdirSync(join(home, 'config/labconfig'));
  writeFileSync(
    join(home, 'config/labconfig/page_config.json'),
    '{"buildCheck": false, "buildAvailable": false}'
  );
  // For ranks that do without torch, whose import takes seconds.
  const hidden = join(home, 'without-torch/torch');
  mkdirSync(hidden, { recursive: true });
  writeFileSync(
    join(hidden, '__init__.py'),
    'raise ModuleNotFoundError("No module named \'torch\'", name="torch")'
  );
  mkdirSync(join(home, 'extensions'));
  symlinkSync(
    join(ROOT, 'nbdist/labextension'),
    join(home, 'extensions/nbdist')
  );
  process.on('exit', () => {
    rmSync(home, { recursive: true, force: true });
  });
}

export default defineConfig({
  testDir: '.',
  outputDir: 'results',
  workers: 1,
  timeout: seconds(180),
  expect: { timeout: seconds(30) },
  forbidOnly: !!process.env.CI,
  reporter: 'list',
  use: {
    baseURL: `http://127.0.0.1:${port}`,
    // Recording a video needs a program that comes only with Playwright's own browsers.
    video: 'off',
    // A trace's snapshots would take as much processor time as the tests.
    trace: {
      mode: 'retain-on-failure',
      screenshots: false,
      snapshots: false
    },
    screenshot: 'only-on-failure',
    viewport: { width: 1280, height: 900 },
    launchOptions: {
      executablePath: process.env.CHROMIUM,
      args: [
        '--no-sandbox',
        '--disable-gpu',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync'
      ]
    }
  },
  webServer: {
    command: `${PYTHON} -m jupyterlab --config ${join(__dirname, 'jupyter_server_config.py')}`,
    url: `http://127.0.0.1:${port}/api`,
    timeout: seconds(120),
    stderr: 'ignore', // Jupyter's log, at length
    gracefulShutdown: { signal: 'SIGTERM', timeout: seconds(20) },
    env: {
      PYTHONPATH: ROOT,
      NBDIST_TEST_EXTENSIONS: join(home, 'extensions'),
      NBDIST_HOME: join(home, 'nbdist'),
      IPYTHONDIR: join(home, 'ipython'),
      JUPYTER_CONFIG_DIR: join(home, 'config'),
      JUPYTER_DATA_DIR: join(home, 'data'),
      JUPYTER_RUNTIME_DIR: join(home, 'runtime'),
      JUPYTERLAB_SETTINGS_DIR: join(home, 'settings')
    }
  }
});
