/** Saves files from the browser. */

import { make } from './dom';

/** Have the browser save a file. */
export function saveFile(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = make('a', { href: address, download: name });
  link.click();
  // After this time the browser has begun to save.
  window.setTimeout(() => {
    URL.revokeObjectURL(address);
  }, 60_000);
}

/** A file name without characters that some systems do not allow. */
export function fileName(...parts: string[]): string {
  return parts.map(part => part.replace(/[^\p{L}\p{N}._-]+/gu, '-')).join('-');
}
