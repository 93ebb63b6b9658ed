/** The values that a page has, as a CSV file: for when there is no server that has all of them. */

import type { ICurve, IRankCurve, IState } from './state';

/** Whether the page has fewer values than were logged: long curves reach it thinned. */
export function isThinned({ panels }: IState): boolean {
  return panels.some(panel =>
    panel.curves.some(
      curve => curve.stride > 1 || curve.each.some(rank => rank.x)
    )
  );
}

/** All values that a page has of some runs; each run's name is in the first column. */
export function csvOf(runs: [name: string, state: IState][]): string {
  const lines = ['run,metric,rank,step,time,value'];
  for (const [name, { panels }] of runs) {
    for (const curve of panels.flatMap(panel => panel.curves)) {
      const before = [name, curve.name].map(quoted).join(',');
      rows(curve).forEach(row => lines.push(`${before},${row}`));
    }
  }
  return `${lines.join('\r\n')}\r\n`;
}

function rows(curve: ICurve): string[] {
  if (curve.each.length === 0) {
    return rowsOf('', curve.x, curve.time, curve.mean);
  }
  return curve.each.flatMap(rank => rowsOfRank(curve, rank));
}

function rowsOfRank(curve: ICurve, rank: IRankCurve): string[] {
  return rowsOf(
    String(rank.rank),
    rank.x ?? curve.x,
    rank.time ?? curve.time,
    rank.values
  );
}

/** Where a rank has logged nothing there is no row; what was no finite number is in the marks. */
function rowsOf(
  rank: string,
  steps: Float64Array,
  times: Float64Array,
  values: Float32Array
): string[] {
  return Array.from(values, (value, i) =>
    Number.isNaN(value)
      ? ''
      : [rank, steps[i], times[i], Number(value.toPrecision(7))].join(',')
  ).filter(row => row !== '');
}

function quoted(text: string): string {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
