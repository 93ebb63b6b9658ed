/** How the page is measured: `python -m benchmarks --only page`. */

import { defineConfig } from '@playwright/test';
import { seconds } from './limits';
import config from './playwright.config';

export default defineConfig({
  ...config,
  timeout: seconds(240),
  projects: [
    {
      name: 'figures',
      testMatch: 'page.figures.ts',
      // The cost of recording a trace would be measured, too.
      use: { ...config.use, trace: 'off', screenshot: 'off' }
    }
  ]
});
