/**
 * What the kernel says of a job: one binary value, see `nbdist/widgets/chart.py`.
 *
 * A JSON header says what there is; its numbers are indices into the two arrays of numbers that
 * follow it.
 */

/** How a job is doing. */
export type JobState =
  'queued' | 'running' | 'done' | 'failed' | 'interrupted' | 'timed out';

/** A progress bar of a rank. */
export interface IBar {
  label: string;
  /** How many bars it is inside of. */
  depth: number;
  done: number;
  /** Null where it is not known. */
  total: number | null;
  /** Iterations a second. */
  rate: number | null;
  /** Samples a second, of all ranks. */
  samples: number | null;
  /** Seconds. */
  left: number | null;
}

/** What a rank is and does; null stands for unknown. */
export interface IRank {
  rank: number;
  /** Empty on the notebook's own host. */
  host: string;
  device: string;
  /** Percent of one core. */
  cpu: number | null;
  /** Bytes. */
  memory: number | null;
  /** Percent. */
  gpu: number | null;
  gpu_memory: number | null;
  /** What it does, in words. */
  state: string;
  /** Seconds a step. */
  step: number | null;
}

/** The curve of one rank; without `x` and `count` of its own it has those of its metric. */
export interface IRankCurve {
  rank: number;
  values: number;
  x?: number;
  count?: number;
}

/** A value that was no finite number: its step, what it was, whose it was. */
export type Mark = [step: number, kind: 'nan' | 'inf' | '-inf', rank: number];

/** A metric; `x` counts from the first double, `mean`, `low` and `high` from the first single. */
export interface ICurve {
  name: string;
  label: string;
  count: number;
  /** Steps a point stands for; its x is the last of them. */
  stride: number;
  /** How many values were logged, of all ranks. */
  points: number;
  x: number;
  mean: number;
  low: number;
  high: number;
  /** Empty if only one rank logs it. */
  each: IRankCurve[];
  marks: Mark[];
  last: number | null;
  best: [least: number | null, most: number | null];
}

/** Curves that are drawn together. */
export interface IPanel {
  title: string;
  curves: ICurve[];
}

/** All but the numbers of the curves. */
export interface IHeader {
  version: number;
  state: JobState;
  title: string;
  seconds: number;
  bars: IBar[];
  /** Which rank the others wait for, in words; empty if none. */
  straggler: string;
  ranks: IRank[];
  panels: IPanel[];
  /** How many doubles there are. */
  floats: number;
  note: string;
}

/** A header and its numbers. */
export interface IState {
  header: IHeader;
  doubles: Float64Array;
  singles: Float32Array;
}

/** The version of the header that this page reads. */
export const VERSION = 1;

/**
 * Read what the kernel sent.
 *
 * @returns Null where nothing was sent yet.
 * @throws Error where the kernel's nbdist speaks another version.
 */
export function decode(view: DataView): IState | null {
  if (view.byteLength < 4) {
    return null;
  }
  const length = view.getUint32(0, true);
  const text = new Uint8Array(view.buffer, view.byteOffset + 4, length);
  const header = JSON.parse(new TextDecoder().decode(text)) as IHeader;
  if (header.version !== VERSION) {
    throw new Error(
      `This page reads version ${VERSION} of nbdist's metrics and the kernel sends ` +
        `version ${header.version}. Restart the kernel and reload the page.`
    );
  }
  // Copied: arrays of numbers must begin at multiples of their size, and what arrives may not.
  const numbers = view.buffer.slice(
    view.byteOffset + 4 + length,
    view.byteOffset + view.byteLength
  );
  return {
    header,
    doubles: new Float64Array(numbers, 0, header.floats),
    singles: new Float32Array(numbers, header.floats * 8)
  };
}
