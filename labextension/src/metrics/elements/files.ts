/** Files that a person saves. */

import { make } from './dom';

/** Have the browser save a file. */
export function saveFile(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = make('a', { href: address, download: name });
  link.click();
  // The browser has begun by then.
  window.setTimeout(() => {
    URL.revokeObjectURL(address);
  }, 60_000);
}

/** A name for a file, without what systems do not take in one. */
export function fileName(...parts: string[]): string {
  return parts.map(part => part.replace(/[^\p{L}\p{N}._-]+/gu, '-')).join('-');
}
