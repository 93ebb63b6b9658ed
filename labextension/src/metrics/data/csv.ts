/** Writes the page's values as a CSV file, for when no server has all values. */

import type { ICurve, IRankCurve, IState } from './state';

/** Whether the page has fewer values than were logged, as long curves are thinned. */
export function isThinned({ panels }: IState): boolean {
  return panels.some(panel =>
    panel.curves.some(
      curve => curve.stride > 1 || curve.each.some(rank => rank.x)
    )
  );
}

/** All values that the page has of these runs, with the name of the run in the first column. */
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

/** Only values that the rank has logged have a row. Values that are not finite are in the marks. */
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
