/**
 * The state of a job, and the binary frames in which it travels: see `nbdist/view/page_state.py`.
 *
 * Each curve holds its own arrays of numbers. States are never changed: each frame makes a new
 * state, which shares the unchanged curves with the state before it.
 */

/** The states that a job's process reports; see `nbdist/job/states.py`. */
export type ReportedState =
  /** A detached job whose keeper does not run it yet. */
  | 'starting'
  | 'queued'
  | 'running'
  | 'done'
  | 'failed'
  | 'interrupted'
  | 'timed out';

/** The state of a job in a word. */
export type JobState =
  | ReportedState
  /** The kernel or keeper of the job has died. */
  | 'lost'
  /** The server does not know the job any more, and how it ended is not known. */
  | 'unknown';

/** A progress bar of a rank. */
export interface IBar {
  label: string;
  /** How many bars this bar is nested in. */
  depth: number;
  done: number;
  /** Null if it is not known. */
  total: number | null;
  /** Iterations a second. */
  rate: number | null;
  /** Samples a second, of all ranks. */
  samples: number | null;
  /** The remaining seconds. */
  left: number | null;
  /** Seconds since the last step, if that is far longer than a step takes. */
  still: number | null;
}

/** A rank and what it does; null means unknown. */
export interface IRank {
  rank: number;
  /** Empty if it is the notebook's own host. */
  host: string;
  device: string;
  /** Percent of one core. */
  cpu: number | null;
  /** Bytes. */
  memory: number | null;
  /** Percent. */
  gpu: number | null;
  gpu_memory: number | null;
  /** What the rank does, in words. */
  state: string;
  /** Seconds a step. */
  step: number | null;
}

/** The curve of one rank; if `x` or `time` is missing, that of the metric holds. */
export interface IRankCurve {
  rank: number;
  values: Float32Array;
  x?: Float64Array;
  time?: Float64Array;
}

/** A value that is not finite: its step, its kind, its rank. */
export type Mark = [step: number, kind: 'nan' | 'inf' | '-inf', rank: number];

/** What is known of a curve besides its arrays of numbers. */
interface IFacts {
  /** How many steps a point stands for; its `x` is the last of these steps. */
  stride: number;
  /** How many values all ranks have logged. */
  points: number;
  marks: Mark[];
  last: number | null;
  best: [least: number | null, most: number | null];
}

/** A metric: each of its arrays has one number for each point. */
export interface ICurve extends IFacts {
  name: string;
  label: string;
  /** Steps. */
  x: Float64Array;
  /** When the last value of a point was logged, in seconds since 1970. */
  time: Float64Array;
  /** The mean over all ranks; NaN where there is no finite value. */
  mean: Float32Array;
  low: Float32Array;
  high: Float32Array;
  /** Empty if only one rank logs it. */
  each: IRankCurve[];
  /** The number of the run, if a view shows several; 0 or missing for the view's own. */
  run?: number;
}

/** Curves that are drawn together. */
export interface IPanel {
  title: string;
  curves: ICurve[];
}

/** The state of a job without its curves. */
interface IAround {
  /** The name of the job's folder; by it and the job's id the server finds the job. */
  folder: string;
  job: string;
  state: JobState;
  title: string;
  seconds: number;
  /** When the ranks began, in seconds since 1970; 0 if that is not known. */
  began: number;
  bars: IBar[];
  /** A sentence about the rank that the others wait for; empty if there is none. */
  straggler: string;
  ranks: IRank[];
  note: string;
}

/** The state of a job. */
export interface IState extends IAround {
  panels: IPanel[];
  /** The CPU, memory and the like that the ranks use, by second of the job. */
  resources: IPanel[];
}

/** How a frame changes an array: its first `from` points stay, and `count` new ones follow. */
interface IPart {
  from: number;
  count: number;
}

/** A curve that has changed. */
interface ICurveNews extends IFacts, IPart {
  name: string;
  label: string;
  each: (IPart & { rank: number; x: boolean; time: boolean })[];
}

/** Curves that are drawn together; a curve that has not changed has only its names. */
interface IPanelNews {
  title: string;
  curves: (ICurveNews | { name: string; label: string })[];
}

/** The JSON of a frame. */
export interface IFrame extends IAround {
  version: number;
  /** Whether the frame holds the whole state. */
  whole: boolean;
  panels: IPanelNews[];
  /** Null if they have not changed. */
  resources: IPanelNews[] | null;
  /** How many doubles stand before the singles. */
  floats: number;
}

/** The version of the frames that this page reads. */
export const VERSION = 2;

/**
 * Read a frame.
 *
 * @param before The state after the frame before; null if this is the first frame.
 * @returns The new state; null if nothing was sent yet.
 * @throws Error if the frame has another version, or if it is not whole and `before` is missing.
 */
export function decode(view: DataView, before: IState | null): IState | null {
  if (view.byteLength < 4) {
    return null;
  }
  const length = view.getUint32(0, true);
  const text = new Uint8Array(view.buffer, view.byteOffset + 4, length);
  const frame = JSON.parse(new TextDecoder().decode(text)) as IFrame;
  const { version, whole, panels, resources, floats, ...around } = frame;
  if (version !== VERSION) {
    throw new Error(
      `This page reads version ${VERSION} of nbdist's metrics, and this is ` +
        `version ${version}. Restart the kernel and reload the page.`
    );
  }
  if (!whole && !before) {
    throw new Error('The beginning of the metrics is missing.');
  }
  // Copied, because arrays of numbers must begin at multiples of their size.
  const numbers = view.buffer.slice(
    view.byteOffset + 4 + length,
    view.byteOffset + view.byteLength
  );
  const reader = new Reader(
    new Float64Array(numbers, 0, floats),
    new Float32Array(numbers, floats * 8)
  );
  const known = whole ? null : before;
  return {
    ...around,
    panels: reader.panels(panels, known?.panels),
    resources: resources
      ? reader.panels(resources, known?.resources)
      : (known?.resources ?? [])
  };
}

/** Takes the numbers of a frame in their order, and appends them to the numbers known before. */
class Reader {
  constructor(
    private readonly _doubles: Float64Array,
    private readonly _singles: Float32Array
  ) {}

  panels(told: IPanelNews[], old: IPanel[] = []): IPanel[] {
    const known = new Map(
      old.flatMap(({ curves }) => curves.map(curve => [curve.name, curve]))
    );
    return told.map(({ title, curves }) => ({
      title,
      curves: curves.map(curve => this._curve(curve, known.get(curve.name)))
    }));
  }

  private _curve(
    told: ICurveNews | { name: string; label: string },
    old: ICurve | undefined
  ): ICurve {
    if (!('count' in told)) {
      if (!old) {
        throw new Error(`The beginning of the metric ${told.name} is missing.`);
      }
      return old.label === told.label ? old : { ...old, label: told.label };
    }
    const { from, count, each, ...facts } = told;
    const part = { from, count };
    const ranks = new Map(old?.each.map(rank => [rank.rank, rank]));
    return {
      ...facts,
      x: this._double(part, old?.x),
      time: this._double(part, old?.time),
      mean: this._single(part, old?.mean),
      low: this._single(part, old?.low),
      high: this._single(part, old?.high),
      each: each.map(({ rank, x, time, ...part }) => ({
        rank,
        values: this._single(part, ranks.get(rank)?.values),
        ...(x ? { x: this._double(part, ranks.get(rank)?.x) } : {}),
        ...(time ? { time: this._double(part, ranks.get(rank)?.time) } : {})
      }))
    };
  }

  private _double({ from, count }: IPart, old?: Float64Array): Float64Array {
    const made = new Float64Array(from + count);
    made.set(head(old, from));
    made.set(
      this._doubles.subarray(this._doublesTaken, this._doublesTaken + count),
      from
    );
    this._doublesTaken += count;
    return made;
  }

  private _single({ from, count }: IPart, old?: Float32Array): Float32Array {
    const made = new Float32Array(from + count);
    made.set(head(old, from));
    made.set(
      this._singles.subarray(this._singlesTaken, this._singlesTaken + count),
      from
    );
    this._singlesTaken += count;
    return made;
  }

  private _doublesTaken = 0;
  private _singlesTaken = 0;
}

/** The first numbers of a known array. */
function head<T extends Float32Array | Float64Array>(
  old: T | undefined,
  length: number
): T | number[] {
  if (length > (old?.length ?? 0)) {
    throw new Error('A part of the metrics is missing.');
  }
  return old ? (old.subarray(0, length) as T) : [];
}

/** Encode a state as a whole frame. */
export function encode(state: IState): Uint8Array {
  const doubles: Float64Array[] = [];
  const singles: Float32Array[] = [];
  const { panels, resources, ...around } = state;
  const put = (panels: IPanel[]): IPanelNews[] =>
    panels.map(({ title, curves }) => ({
      title,
      curves: curves.map(({ x, time, mean, low, high, each, ...facts }) => {
        doubles.push(x, time);
        singles.push(mean, low, high);
        return {
          ...facts,
          from: 0,
          count: x.length,
          each: each.map(rank => {
            singles.push(rank.values);
            doubles.push(...[rank.x, rank.time].filter(own => !!own));
            return {
              rank: rank.rank,
              from: 0,
              count: rank.values.length,
              x: !!rank.x,
              time: !!rank.time
            };
          })
        };
      })
    }));
  const header: IFrame = {
    ...around,
    version: VERSION,
    whole: true,
    panels: put(panels),
    resources: put(resources),
    floats: 0
  };
  header.floats = doubles.reduce((sum, { length }) => sum + length, 0);
  return assemble(header, [...doubles, ...singles]);
}

/** Put the header and the numbers of a frame together. */
export function assemble(
  header: IFrame,
  numbers: (Float64Array | Float32Array)[]
): Uint8Array {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil((4 + text.length) / 8) * 8 - 4; // numbers are aligned
  const size = numbers.reduce((sum, { byteLength }) => sum + byteLength, 0);
  const bytes = new Uint8Array(4 + length + size).fill(32);
  new DataView(bytes.buffer).setUint32(0, length, true);
  bytes.set(text, 4);
  let at = 4 + length;
  for (const { buffer, byteOffset, byteLength } of numbers) {
    bytes.set(new Uint8Array(buffer, byteOffset, byteLength), at);
    at += byteLength;
  }
  return bytes;
}

/** How many bytes become text at once: a call takes only a limited number of arguments. */
const PIECE = 0x8000;

/** Write bytes as text in base64. */
export function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += PIECE) {
    text += String.fromCharCode(...bytes.subarray(at, at + PIECE));
  }
  return btoa(text);
}

/** Read bytes from text in base64. */
export function fromBase64(text: string): DataView {
  const bytes = Uint8Array.from(atob(text), sign => sign.charCodeAt(0));
  return new DataView(bytes.buffer);
}
