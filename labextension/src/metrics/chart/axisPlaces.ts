/** The position of each value on the horizontal axis: by step, by time or by epoch. */

import { inTime } from '../../amounts';
import { before } from './lines';
import { count, significant } from '../data/numbers';
import type { Across } from '../data/options';
import type { ICurve, IPanel, IRankCurve, IState, Mark } from '../data/state';

/** What places the values of a job. */
export interface IOrigin {
  /** When it began, in seconds since 1970. */
  began: number;
  /** The metric that says which epoch it was when; null if there is none. */
  epochs: Pick<ICurve, 'time' | 'mean'> | null;
}

/** The name of the metric that places values by their epoch. */
const EPOCH = 'epoch';

/** Find what places the values of a job. */
export function originOf({ began, panels }: IState): IOrigin {
  const curves = panels.flatMap(panel => panel.curves);
  const told = curves.find(curve => curve.name === EPOCH);
  const epochs = told ? turnsOf(told) : null;
  // A kernel that does not say when a job began has logged its first value soon after.
  const first = Math.min(
    ...curves.flatMap(curve => Array.from(curve.time.subarray(0, 1)))
  );
  return {
    began: began || (Number.isFinite(first) ? first : 0),
    epochs: epochs && epochs.time.length > 1 ? epochs : null
  };
}

/** Where it has another value than before, in order of time: many log a whole epoch with each step. */
function turnsOf({ time, mean }: ICurve): Pick<ICurve, 'time' | 'mean'> {
  const kept: number[] = [];
  for (const i of Array.from(time.keys()).sort((a, b) => time[a] - time[b])) {
    const last = kept[kept.length - 1] as number | undefined;
    if (
      Number.isFinite(mean[i]) &&
      (last === undefined || mean[last] !== mean[i])
    ) {
      kept.push(i);
    }
  }
  return { time: pick(time, kept), mean: pick(mean, kept) };
}

/** The epoch at a time: between two values of the metric, and beyond them, at an even pace. */
export function epochAt(
  { time, mean }: Pick<ICurve, 'time' | 'mean'>,
  at: number
): number {
  const last = time.length - 2;
  const i = Math.min(last, Math.max(0, before(time, at)));
  const wide = time[i + 1] - time[i];
  return wide > 0
    ? mean[i] + ((mean[i + 1] - mean[i]) * (at - time[i])) / wide
    : mean[i + 1];
}

/** Words for a place: `step 1,200`, `1 min 2 s`, `epoch 2.5`. */
export function placeName(across: Across, at: number): string {
  switch (across) {
    case 'step':
      return `step ${count(at)}`;
    case 'time':
      return at < 60 ? `${significant(at, 3)} s` : inTime(at);
    case 'epoch':
      return `epoch ${significant(at, 4)}`;
  }
}

/** Where a panel's curves are drawn; their steps give way to their places, in the same arrays. */
export function placed(
  panel: IPanel,
  across: Across,
  origin: (curve: ICurve) => IOrigin
): IPanel {
  if (across === 'step') {
    return panel;
  }
  const curves = panel.curves.map(curve =>
    curveAt(curve, placing(across, origin(curve)))
  );
  return { ...panel, curves };
}

/** Where values of a time stand. Without epochs none has a place. */
function placing(
  across: Across,
  { began, epochs }: IOrigin
): (time: number) => number {
  if (across === 'time') {
    return time => time - began;
  }
  return time => (epochs ? epochAt(epochs, time) : NaN);
}

function curveAt(curve: ICurve, place: (time: number) => number): ICurve {
  const order = ordered(curve.time, place);
  const each = curve.each.map((rank): IRankCurve => {
    const own = rank.time ? ordered(rank.time, place) : order;
    return {
      rank: rank.rank,
      values: pick(rank.values, own.from),
      x: own.x
    };
  });
  return {
    ...curve,
    stride: 1,
    x: order.x,
    time: pick(curve.time, order.from),
    mean: pick(curve.mean, order.from),
    low: pick(curve.low, order.from),
    high: pick(curve.high, order.from),
    each,
    marks: marksAt(curve, place)
  };
}

interface IOrder {
  x: Float64Array;
  /** Where each was before. */
  from: number[];
}

/** Places from left to right: a step that was logged again, later, stands to the right. */
function ordered(times: Float64Array, place: (time: number) => number): IOrder {
  const places = times.map(place);
  const from = Array.from(places.keys())
    .filter(i => Number.isFinite(places[i]))
    .sort((a, b) => places[a] - places[b]);
  return { x: pick(places, from), from };
}

function pick<T extends Float32Array | Float64Array>(
  values: T,
  from: number[]
): T {
  const picked = values.slice(0, from.length) as T;
  from.forEach((at, i) => {
    picked[i] = values[at];
  });
  return picked;
}

/** Marks have a step only; they stand where the point with this step does. */
function marksAt(
  { x, time, marks }: ICurve,
  place: (time: number) => number
): Mark[] {
  return marks.flatMap(([step, kind, rank]): Mark[] => {
    const at = Math.min(x.length - 1, before(x, step - 1e-9) + 1);
    const found = at < 0 ? NaN : place(time[at]);
    return Number.isFinite(found) ? [[found, kind, rank]] : [];
  });
}
