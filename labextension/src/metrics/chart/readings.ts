/** The exact values of a panel's curves at one step, for the tooltip. */

import { before, shownAt, type IDrawing } from './lines';
import { exact, short } from '../data/numbers';
import type { Across, IOptions } from '../data/options';
import { placeName } from './axisPlaces';
import type { ICurve, IPanel } from '../data/state';

/** One line of the tooltip. */
export interface IReading {
  /** The index of the curve in the panel. */
  curve: number;
  rank: number | null;
  label: string;
  value: string;
  note: string;
}

/** If there are more ranks, only the smallest and largest value are given, and that of `focus`. */
const MOST_RANKS = 8;

/**
 * Read the curves of a panel at a step.
 *
 * A curve without a value at this step is read at the last step with one; a note names that step.
 *
 * @param drawing The drawn lines: their smoothed values are given beside the logged ones.
 * @param focus The rank whose line is next to the mouse, if each rank has a line.
 */
export function readings(
  panel: IPanel,
  drawing: IDrawing,
  options: IOptions,
  hidden: ReadonlySet<string>,
  step: number,
  focus: number | null
): IReading[] {
  const shown = panel.curves.filter(curve => !hidden.has(curve.name));
  const found = panel.curves.flatMap((curve, i) => {
    if (!shown.includes(curve)) {
      return [];
    }
    return options.perRank && curve.each.length > 1
      ? ranksOf(curve, i, options.x, step, focus).map(reading =>
          shown.length === 1
            ? { ...reading, label: `rank ${reading.rank}` }
            : reading
        )
      : meanOf(curve, i, options.x, step);
  });
  return options.smoothing > 0
    ? found.map(reading => withSmoothed(reading, drawing, step))
    : found;
}

function withSmoothed(
  reading: IReading,
  drawing: IDrawing,
  step: number
): IReading {
  const value = shownAt(drawing, reading.curve, reading.rank, step);
  const notes = [`smoothed ${short(value)}`, reading.note];
  return { ...reading, note: notes.filter(note => note).join(', ') };
}

function meanOf(
  curve: ICurve,
  index: number,
  across: Across,
  step: number
): IReading[] {
  const { x: steps, mean } = curve;
  let at = before(steps, step);
  while (at > 0 && !Number.isFinite(mean[at])) {
    at--;
  }
  if (at < 0 || !Number.isFinite(mean[at])) {
    return [];
  }
  const [low, high] = [curve.low[at], curve.high[at]];
  const notes = low < high ? [`${short(low)} to ${short(high)}`] : [];
  return [
    {
      curve: index,
      rank: null,
      label: curve.label,
      value: exact(mean[at]),
      note: [...notes, ...elsewhere(across, steps[at], step)].join(', ')
    }
  ];
}

interface IValue {
  rank: number;
  value: number;
  step: number;
  note: string[];
}

function ranksOf(
  curve: ICurve,
  index: number,
  across: Across,
  step: number,
  focus: number | null
): IReading[] {
  const values = curve.each.flatMap((each): IValue[] => {
    const steps = each.x ?? curve.x;
    const found = each.values;
    let at = before(steps, step);
    while (at > 0 && Number.isNaN(found[at])) {
      at--;
    }
    return at < 0 || Number.isNaN(found[at])
      ? []
      : [{ rank: each.rank, value: found[at], step: steps[at], note: [] }];
  });
  const shown = values.length <= MOST_RANKS ? values : extremes(values, focus);
  return shown.map(value => ({
    curve: index,
    rank: value.rank,
    label: `${curve.label}, rank ${value.rank}`,
    value: exact(value.value),
    note: [...value.note, ...elsewhere(across, value.step, step)].join(', ')
  }));
}

/** The largest value, the value next to the mouse, and the smallest value. */
function extremes(values: IValue[], focus: number | null): IValue[] {
  const sorted = [...values].sort((a, b) => b.value - a.value);
  const [most, least] = [sorted[0], sorted[sorted.length - 1]];
  const near = values.find(value => value.rank === focus);
  return [
    { ...most, note: ['max'] },
    ...(near && near !== most && near !== least ? [near] : []),
    { ...least, note: ['min'] }
  ];
}

function elsewhere(across: Across, found: number, asked: number): string[] {
  return found === asked ? [] : [`at ${placeName(across, found)}`];
}
