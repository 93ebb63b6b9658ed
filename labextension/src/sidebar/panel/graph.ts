/** The paths of the small graphs. No DOM. */

import { LENGTH, type Used } from '../server/history';

export const WIDTH = 60;
export const HEIGHT = 16;

/** The area below a history, with the newest value at the right; unknown values leave gaps. */
export function area(past: (number | null)[], name: Used): string {
  const known = past.filter(value => value !== null);
  const most =
    name === 'cpu' || name === 'gpu'
      ? Math.max(100, ...known)
      : Math.max(1, ...known) * 1.25;
  const step = WIDTH / (LENGTH - 1);
  const left = WIDTH - (past.length - 1) * step;
  let path = '';
  let points: string[] = [];
  const close = (end: number): void => {
    if (points.length > 1) {
      const begin = end - points.length + 1;
      path += `M${at(left + begin * step)} ${HEIGHT}L${points.join('L')}L${at(left + end * step)} ${HEIGHT}Z`;
    }
    points = [];
  };
  past.forEach((value, i) => {
    if (value === null) {
      close(i - 1);
    } else {
      points.push(`${at(left + i * step)} ${at(HEIGHT * (1 - value / most))}`);
    }
  });
  close(past.length - 1);
  return path;
}

function at(value: number): string {
  return value.toFixed(1);
}
