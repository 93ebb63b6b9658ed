/** The range and the ticks of each axis, computed with d3: uPlot has no ticks for some ranges. */

import { ticks } from 'd3-array';
import type uPlot from 'uplot';
import { tick } from '../data/numbers';
import type { Across, IOptions } from '../data/options';
import { timeLabels, timeTicks } from './times';
import type { Theme } from '../elements/theme';

// uPlot's own name for this number exists only for the type checker.
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment
const LOGARITHMIC = 3 as uPlot.Scale.Distr.Logarithmic;
const AXIS_WIDTH = 52;
const AXIS_HEIGHT = 22;
const DIGIT_WIDTH = 6.6;
const GAP = 4;
/** The room above and below curves, as a share of their extent. */
const ROOM = 0.06;
/** The least distance of two labels in pixels, on the horizontal axis. */
const ACROSS = 60;
/** The same for durations, whose labels are longer. */
const LONG = 84;
const DOWN = 32;
/** If there are more decades, only powers of ten have lines: others would be too close. */
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

/** The axis of the values. It grows with its labels but never shrinks, so charts stay in place. */
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

/** How many labels fit on the horizontal axis. */
function across(chart: uPlot, apart: number): number {
  return Math.max(1, Math.floor((chart.width - AXIS_WIDTH) / apart));
}

function down(chart: uPlot): number {
  return Math.max(2, Math.floor((chart.height - AXIS_HEIGHT) / DOWN));
}

/** The labels of ticks, with enough digits to distinguish neighbours; '' for null. */
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
    // nbdist computes the ticks, but uPlot draws an axis only if it finds an increment. It knows
    // none for the widest ranges, and does not accept unknown increments below 5.
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
    // A constant is drawn half way up; a narrower range would only magnify noise.
    return min === 0 ? [0, 1] : [Math.min(0, 2 * min), Math.max(0, 2 * min)];
  }
  const extent = max - min;
  const [low, high] = [min - extent * ROOM, max + extent * ROOM];
  // The room must not cross zero: an axis below zero would suggest negative values.
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

/** Below this, 1 divided by the distance of ticks, as d3 computes it, exceeds the largest number. */
const TINY = 1e-200;

/** Evenly spaced round numbers: at most `most`, but at least two. */
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

/** Ticks for steps: whole numbers only. */
export function stepTicks(min: number, max: number, most: number): number[] {
  return evenly(min, max, most).filter(Number.isInteger);
}

/**
 * The ticks of a logarithmic axis: 1, 2, …, 9 times each power of ten, or only the powers if there
 * are many decades. If the range is a small part of a decade, the ticks are evenly spaced.
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

/** The ticks that get a label, at most `most`; null for the others. */
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

/** Evenly spaced powers of ten: every second, every fifth… */
function spread(splits: number[], most: number): Set<number> {
  const powers = splits.map(split => Math.round(Math.log10(split)));
  const chosen = evenly(powers[0], powers[powers.length - 1], most);
  return new Set(chosen.map(power => Number(`1e${power}`)));
}

function leading(split: number): number {
  return Number(split.toExponential().split('e')[0]);
}
