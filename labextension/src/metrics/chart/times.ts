/** Ticks of an axis of time: at whole seconds, minutes, hours or days. */

import { ticks } from 'd3-array';
import { inTime } from '../../amounts';
import { tick } from '../data/numbers';

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** The distances of ticks: round numbers of seconds, minutes and hours. */
const APART = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map(each => each * MINUTE),
  ...[1, 2, 3, 6, 12].map(each => each * HOUR)
];

/** The ticks of a range, about `most` of them. */
export function timeTicks(min: number, max: number, most: number): number[] {
  const rough = (max - min) / most;
  if (rough < 1) {
    return ticks(min, max, most);
  }
  const apart =
    APART.find(each => each >= rough) ?? Math.ceil(rough / DAY) * DAY;
  const first = Math.ceil(min / apart);
  const last = Math.floor(max / apart);
  return Array.from(
    { length: last - first + 1 },
    (_, i) => (first + i) * apart
  );
}

/** The labels of ticks: 0, 10 s, 1 min 30 s, 2 h. */
export function timeLabels(splits: number[]): string[] {
  const apart = splits.length > 1 ? splits[1] - splits[0] : 1;
  return splits.map(split => {
    if (split === 0) {
      return '0';
    }
    return split < 0 || apart < 1 ? `${tick(split, apart)} s` : inTime(split);
  });
}
