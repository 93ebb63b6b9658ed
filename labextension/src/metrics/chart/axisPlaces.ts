/** The position of each value on the horizontal axis: by step, by time or by epoch. */

import { inTime } from '../../amounts';
import { before } from './lines';
import { count, significant } from '../data/numbers';
import type { Across } from '../data/options';
import type { ICurve, IPanel, IRankCurve, IState, Mark } from '../data/state';

/** What is needed to place the values of a job by time or by epoch. */
export interface IOrigin {
  /** When the job began, in seconds since 1970. */
  began: number;
  /** The values of the metric `epoch` with their times; null if there is no such metric. */
  epochs: Pick<ICurve, 'time' | 'mean'> | null;
}

/** The name of the metric that gives the epoch. */
const EPOCH = 'epoch';

/** Find what is needed to place the values of a job. */
export function originOf({ began, panels }: IState): IOrigin {
  const curves = panels.flatMap(panel => panel.curves);
  const told = curves.find(curve => curve.name === EPOCH);
  const epochs = told ? turnsOf(told) : null;
  // If the beginning is not known, the time of the first value is close to it.
  const first = Math.min(
    ...curves.flatMap(curve => Array.from(curve.time.subarray(0, 1)))
  );
  return {
    began: began || (Number.isFinite(first) ? first : 0),
    epochs: epochs && epochs.time.length > 1 ? epochs : null
  };
}

/** The points where the epoch changes, by time: many users log a whole epoch with each step. */
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

/** The epoch at a time: linear between two values of the metric, and beyond the last ones. */
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

/** A place in words: `step 1,200`, `1 min 2 s`, `epoch 2.5`. */
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

/** Return a panel in which `x` of the curves holds places by time or epoch instead of steps. */
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

/** Return the function that gives a time its place. Without epochs it returns NaN. */
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
  /** The old index of each value. */
  from: number[];
}

/** Sort values by place: a step that was logged again later stands further to the right. */
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

/** Marks have only a step. They get the place of the point with this step. */
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
