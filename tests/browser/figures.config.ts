/** How figures of the page are taken: `python -m benchmarks --only page`. */

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
      // What a trace records, too, would be counted.
      use: { ...config.use, trace: 'off', screenshot: 'off' }
    }
  ]
});
