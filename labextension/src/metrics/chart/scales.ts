/** The range and the ticks of each axis, computed with d3: uPlot has no ticks for some ranges. */

import { ticks } from 'd3-array';
import type uPlot from 'uplot';
import { tick } from '../data/numbers';
import type { Across, IOptions } from '../data/options';
import { timeLabels, timeTicks } from './times';
import type { Theme } from '../elements/theme';

// uPlot's own name of it exists for the type checker only.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC = 3 as uPlot.Scale.Distr.Logarithmic;
const AXIS_WIDTH = 52;
const AXIS_HEIGHT = 22;
const DIGIT_WIDTH = 6.6;
const GAP = 4;
/** Room around curves, as a share of their extent. */
const ROOM = 0.06;
/** Pixels between two labels, at least. */
const ACROSS = 60;
/** The same for durations. */
const LONG = 84;
const DOWN = 32;
/** With more decades than this their parts are too near each other for lines. */
const FEW_DECADES = 5;

/** The scale of the values. */
export function valueScale({
  log,
  fromZero
}: Pick<IOptions, 'log' | 'fromZero'>): uPlot.Scale {
  return log
    ? {
        distr: LOGARITHMIC,
        log: 10,
        range: (_chart, min, max) => logRange(min, max)
      }
    : { range: (_chart, min, max) => linearRange(min, max, fromZero) };
}

/** The horizontal axis. */
export function placeAxis(theme: Theme, x: Across): uPlot.Axis {
  return {
    ...axis(theme),
    size: AXIS_HEIGHT,
    grid: { show: false },
    splits: (chart, _axis, min, max) => {
      const most = across(chart, x === 'time' ? LONG : ACROSS);
      return x === 'step'
        ? stepTicks(min, max, most)
        : x === 'time'
          ? timeTicks(min, max, most)
          : evenly(min, max, most);
    },
    values: (_chart, splits) =>
      x === 'time' ? timeLabels(splits) : labels(splits)
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
    grid: { stroke: () => theme.of('grid', 0.7), width: 1 }
  };
  return log
    ? {
        ...looks,
        splits: (chart, _axis, min, max) => logSplits(min, max, down(chart)),
        filter: (chart, splits) => logLabels(splits, down(chart)),
        values: (_chart, splits: (number | null)[]) => labels(splits)
      }
    : {
        ...looks,
        splits: (chart, _axis, min, max) => evenly(min, max, down(chart)),
        values: (_chart, splits) => labels(splits)
      };
}

/** How many labels there is room for. */
function across(chart: uPlot, apart: number): number {
  return Math.max(1, Math.floor((chart.width - AXIS_WIDTH) / apart));
}

function down(chart: uPlot): number {
  return Math.max(2, Math.floor((chart.height - AXIS_HEIGHT) / DOWN));
}

/** The labels of ticks: written so that neighbours are told apart; '' for null. */
export function labels(splits: (number | null)[]): string[] {
  const written = splits.filter(split => split !== null);
  return splits.map(split => {
    if (split === null) {
      return '';
    }
    const at = written.indexOf(split);
    const beside = [
      ...written.slice(Math.max(0, at - 1), at),
      ...written.slice(at + 1, at + 2)
    ];
    const apart = beside.map(other => Math.abs(other - split));
    return tick(split, apart.length ? Math.min(...apart) : Math.abs(split));
  });
}

function axis(theme: Theme): uPlot.Axis {
  return {
    gap: GAP,
    space: 1,
    // What uPlot chooses is not used, but without an increment it would draw no axis: it knows
    // none for the widest ranges, and takes none below 5 that it does not know.
    incrs: (_chart, _axis, min, max) => [Math.max(5, max - min)],
    font: theme.font,
    stroke: () => theme.of('muted'),
    ticks: { show: false }
  };
}

function linearRange(
  min: number | null,
  max: number | null,
  fromZero: boolean
): [number, number] {
  if (min === null || max === null) {
    return [0, 1];
  }
  if (fromZero) {
    [min, max] = [Math.min(0, min), Math.max(0, max)];
  }
  if (min === max) {
    // One level, half way up: none of its digits are noise to look into.
    return min === 0 ? [0, 1] : [Math.min(0, 2 * min), Math.max(0, 2 * min)];
  }
  const extent = max - min;
  const [low, high] = [min - extent * ROOM, max + extent * ROOM];
  // What is never below zero is not shown to be, nor above it what never is.
  return [min >= 0 && low < 0 ? 0 : low, max <= 0 && high > 0 ? 0 : high];
}

function logRange(min: number | null, max: number | null): [number, number] {
  if (min === null || max === null) {
    return [0.1, 1];
  }
  const [low, high] = [Math.log10(min), Math.log10(max)];
  const extent = Math.max(high - low, 0.1) * ROOM;
  return [
    Math.max(Number.MIN_VALUE, 10 ** (low - extent)),
    Math.min(Number.MAX_VALUE, 10 ** (high + extent))
  ];
}

/** d3 divides 1 by the distance of ticks, which below this is more than there are numbers for. */
const TINY = 1e-200;

/** Evenly spaced round numbers, so many at most, but two at least. */
export function evenly(min: number, max: number, most: number): number[] {
  if (Math.max(-min, max) < TINY) {
    return evenly(min / TINY, max / TINY, most).map(split => split * TINY);
  }
  for (let count = most; count > 2; count--) {
    const found = ticks(min, max, count);
    if (found.length <= most) {
      return found;
    }
  }
  return ticks(min, max, 2);
}

/** Steps are whole numbers, so are their ticks. */
export function stepTicks(min: number, max: number, most: number): number[] {
  return evenly(min, max, most).filter(Number.isInteger);
}

/**
 * 1, 2, …, 9 of every decade, only 1 of many decades; evenly spaced numbers where the range is a
 * small part of one.
 */
export function logSplits(min: number, max: number, most: number): number[] {
  const found = [];
  const last = Math.floor(Math.log10(max)) + 1;
  for (let power = Math.floor(Math.log10(min)) - 1; power <= last; power++) {
    const digits = last - Math.log10(min) > FEW_DECADES ? 1 : 9;
    for (let digit = 1; digit <= digits; digit++) {
      const split = Number(`${digit}e${power}`);
      if (min <= split && split <= max) {
        found.push(split);
      }
    }
  }
  return found.length > 2 ? found : evenly(min, max, most);
}

/** Which of them are written, so many at most; null for the others. */
export function logLabels(splits: number[], most: number): (number | null)[] {
  if (splits.length <= most) {
    return splits;
  }
  const digits = [[1, 2, 5], [1, 3], [1]].map(
    some => new Set(splits.filter(split => some.includes(leading(split))))
  );
  const chosen =
    digits.find(each => each.size >= 2 && each.size <= most) ??
    spread(splits, most);
  return splits.map(split => (chosen.has(split) ? split : null));
}

/** Powers of ten, evenly spaced: every second, every fifth… */
function spread(splits: number[], most: number): Set<number> {
  const powers = splits.map(split => Math.round(Math.log10(split)));
  const chosen = evenly(powers[0], powers[powers.length - 1], most);
  return new Set(chosen.map(power => Number(`1e${power}`)));
}

function leading(split: number): number {
  return Number(split.toExponential().split('e')[0]);
}
