/** The panel in the sidebar, used as a person uses it. */

import { expect, type Locator, type Page } from '@playwright/test';

export class Sidebar {
  constructor(readonly page: Page) {}

  /** Show the panel. */
  async open(): Promise<void> {
    const tab = this.page.getByRole('tab', { name: /Clusters and jobs/ });
    if ((await tab.getAttribute('aria-selected')) !== 'true') {
      await tab.click();
    }
    await expect(this.root).toBeVisible();
  }

  get root(): Locator {
    return this.page.getByRole('region', { name: 'Clusters and jobs' });
  }

  cluster(name = 'Cluster 1'): Locator {
    return this.root.getByRole('group', { name, exact: true });
  }

  /** A rank of the first cluster, in its row or its cell. */
  rank(number: number): Locator {
    return this.cluster().locator(`[data-rank="${number}"]`).first();
  }

  /** The job with this id. */
  job(id: string): Locator {
    return this.root.getByRole('group', { name: `Job ${id}`, exact: true });
  }

  /** The title of a section. */
  section(name: string): Locator {
    return this.root.locator('.lm-AccordionPanel-title', { hasText: name });
  }

  button(name: string | RegExp): Locator {
    return this.root.getByRole('button', { name });
  }

  /** Confirm a dialog. */
  async accept(word: string): Promise<void> {
    await this.page
      .getByRole('dialog')
      .getByRole('button', { name: word })
      .click();
  }
}
