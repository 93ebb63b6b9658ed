/** How the pictures of the README are made: `make screenshots`. */

import { defineConfig } from '@playwright/test';
import { seconds } from './limits';
import config from './playwright.config';

const use = { ...config.use, deviceScaleFactor: 1.25 };

export default defineConfig({
  ...config,
  timeout: seconds(120),
  projects: [
    {
      name: 'metrics',
      testMatch: 'metrics.screenshots.ts',
      use: { ...use, viewport: { width: 1010, height: 2100 } }
    },
    {
      name: 'sidebar',
      testMatch: 'sidebar.screenshots.ts',
      use: { ...use, viewport: { width: 1180, height: 860 } }
    }
  ]
});
