/** Where axes begin and end, and where their ticks are. */

import type uPlot from 'uplot';
import { tick } from './numbers';
import type { Theme } from './theme';

// uPlot's own name of it exists for the type checker only.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC = 3 as uPlot.Scale.Distr.Logarithmic;
const AXIS_WIDTH = 52;
const AXIS_HEIGHT = 22;
const DIGIT_WIDTH = 6.6;
const GAP = 4;
/** Room around curves, as a share of their extent. */
const ROOM = 0.06;
/** With more decades than this, only powers of ten are written. */
const FEW_DECADES = 3;

/** Steps are whole numbers, so are their ticks. */
const STEPS = Array.from({ length: 15 }, (_, power) =>
  [1, 2, 5].map(digit => digit * 10 ** power)
).flat();

/** The scale of the values. */
export function valueScale(log: boolean): uPlot.Scale {
  return log
    ? {
        distr: LOGARITHMIC,
        log: 10,
        range: (_chart, min, max) => logRange(min, max)
      }
    : { range: (_chart, min, max) => linearRange(min, max) };
}

/** The axis of the steps. */
export function stepAxis(theme: Theme): uPlot.Axis {
  return {
    ...axis(theme),
    size: AXIS_HEIGHT,
    space: 48,
    incrs: STEPS,
    grid: { show: false },
    values: (_chart, splits, _axis, _space, apart) =>
      splits.map(split => tick(split, apart))
  };
}

/** The axis of the values; it grows wider with its labels but never back, so charts stay in place. */
export function valueAxis(theme: Theme, log: boolean): uPlot.Axis {
  let width = AXIS_WIDTH;
  const looks: uPlot.Axis = {
    ...axis(theme),
    size: (_chart, labels: string[] | null) => {
      const longest = Math.max(0, ...(labels ?? []).map(label => label.length));
      width = Math.max(width, longest * DIGIT_WIDTH + GAP + 2);
      return width;
    },
    space: 30,
    grid: { stroke: () => theme.of('grid', 0.7), width: 1 }
  };
  return log
    ? {
        ...looks,
        splits: (_chart, _axis, min, max) => logSplits(min, max),
        filter: (_chart, splits) => logLabels(splits),
        values: (_chart, splits) =>
          splits.map((split: number | null) =>
            split === null ? '' : tick(split, Math.abs(split) / 100)
          )
      }
    : {
        ...looks,
        values: (_chart, splits, _axis, _space, apart) =>
          splits.map(split => tick(split, apart))
      };
}

function axis(theme: Theme): uPlot.Axis {
  return {
    gap: GAP,
    font: theme.font,
    stroke: () => theme.of('muted'),
    ticks: { show: false }
  };
}

function linearRange(min: number | null, max: number | null): [number, number] {
  if (min === null || max === null) {
    return [0, 1];
  }
  if (min === max) {
    // One level, half way up: none of its digits are noise to look into.
    return min === 0 ? [0, 1] : [Math.min(0, 2 * min), Math.max(0, 2 * min)];
  }
  const extent = max - min;
  const [low, high] = [min - extent * ROOM, max + extent * ROOM];
  // What is never below zero is not shown to be.
  return [min >= 0 && low < 0 ? 0 : low, high];
}

function logRange(min: number | null, max: number | null): [number, number] {
  if (min === null || max === null) {
    return [0.1, 1];
  }
  const extent = Math.max(Math.log10(max / min), 0.1) * ROOM;
  return [min / 10 ** extent, max * 10 ** extent];
}

/** 1, 2, …, 9 of every decade; evenly spaced numbers where the range is a small part of one. */
export function logSplits(min: number, max: number): number[] {
  const found = [];
  for (let power = Math.floor(Math.log10(min)); 10 ** power <= max; power++) {
    for (let digit = 1; digit <= 9; digit++) {
      const split = Number(`${digit}e${power}`);
      if (min <= split && split <= max) {
        found.push(split);
      }
    }
  }
  if (found.length > 2) {
    return found;
  }
  const rough = (max - min) / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const apart = unit * (rough < 2 * unit ? 1 : rough < 5 * unit ? 2 : 5);
  const first = Math.ceil(min / apart);
  return Array.from({ length: Math.floor(max / apart) - first + 1 }, (_, i) =>
    Number(((first + i) * apart).toPrecision(12))
  );
}

/** Which of them are written; null for the others. */
export function logLabels(splits: number[]): (number | null)[] {
  const digit = (split: number): number => Number(split.toExponential()[0]);
  const decades = Math.log10(splits[splits.length - 1] / splits[0]);
  const written = decades > FEW_DECADES ? [1] : [1, 2, 5];
  const every = Math.ceil(decades / 8);
  const labels = splits.map(split =>
    written.includes(digit(split)) &&
    Math.round(Math.log10(split)) % every === 0
      ? split
      : null
  );
  return labels.filter(label => label !== null).length > 1 ? labels : splits;
}
