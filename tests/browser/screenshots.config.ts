/** How the pictures of the README are made: `make screenshots`. */

import { defineConfig } from '@playwright/test';
import config from './playwright.config';

export default defineConfig({
  ...config,
  testMatch: 'screenshots.ts',
  timeout: 120_000,
  use: {
    ...config.use,
    viewport: { width: 1010, height: 2100 },
    deviceScaleFactor: 1.25
  }
});
