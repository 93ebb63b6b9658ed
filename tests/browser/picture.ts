/** Pictures for the documents. */

import { join, resolve } from 'node:path';
import type { Locator } from '@playwright/test';

export const DOCS = resolve(__dirname, '../../docs');
const MARGIN = 4;

/** Take a picture of a part of the page, down to the end of its rows if these are named. */
export async function take(
  part: Locator,
  file: string,
  { rows = part }: { rows?: Locator } = {}
): Promise<void> {
  const { x, y, width } = (await part.boundingBox())!;
  const last = (await rows.boundingBox())!;
  const left = Math.max(0, x - MARGIN);
  const top = Math.max(0, y - MARGIN);
  await part.page().screenshot({
    path: join(DOCS, file),
    clip: {
      x: left,
      y: top,
      width: width + 2 * MARGIN,
      height: last.y + last.height + MARGIN - top
    }
  });
}
