/** A translator without translations: it returns the English text. */

import type { TranslationBundle } from '@jupyterlab/translation';

type Part = string | number;

function fill(text: string, parts: Part[]): string {
  return text.replace(/%(\d)|%%/g, (_, number?: string) =>
    number ? String(parts[Number(number) - 1]) : '%'
  );
}

export const trans = {
  __: (text: string, ...parts: Part[]) => fill(text, parts),
  _n: (one: string, many: string, count: number, ...parts: Part[]) =>
    fill(count === 1 ? one : many, [count, ...parts])
} as unknown as TranslationBundle;
