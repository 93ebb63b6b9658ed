/** Turns the curves of a panel into the lines that uPlot draws, on common steps. */

import uPlot from 'uplot';
import type { IOptions } from '../data/options';
import { smooth, type Value } from '../data/smooth';
import type { ICurve, IPanel } from '../data/state';
import { COLOURS } from '../elements/theme';

/** What a line shows of its curve. */
export type Role = 'low' | 'high' | 'raw' | 'mean' | 'rank';

/** One line; line `i` has the values in column `i + 1` of the data. */
export interface ILine {
  role: Role;
  /** The index of the line's curve in the panel. */
  curve: number;
  /** The rank of the line; null if the line combines all ranks. */
  rank: number | null;
  colour: number;
  /** The index of the line's pattern in `DASHES`. */
  dash: number;
}

/** Patterns of lines; the first is solid. */
export const DASHES: readonly number[][] = [[], [6, 3], [2, 3], [10, 3, 2, 3]];
/** So many colours are easy to distinguish; curves with other colours are dashed. */
const SOLID = 4;

/** All that is drawn in a panel. */
export interface IDrawing {
  /** Stays the same as long as only numbers change. */
  key: string;
  lines: ILine[];
  /** Pairs of columns with a filled range between them. */
  bands: { series: [number, number]; colour: number }[];
  /** Steps, then a column for each line: null is a gap, undefined a step that only other lines have. */
  data: uPlot.AlignedData;
}

/** If there are more ranks, they all have the colour of their curve. */
const COLOURED_RANKS = COLOURS;
/** If there are more lines, the values before smoothing are not drawn as faint lines. */
const LINES_WITH_RAW = 8;

const SPLITS: Partial<Record<string, number>> = {
  train: 0,
  training: 0,
  val: 1,
  valid: 1,
  validation: 1,
  dev: 1,
  test: 2,
  eval: 2
};

/** Choose a colour for each label: a split (train, val, test) has the same colour in every panel. */
export function colours(labels: readonly string[]): number[] {
  const used = new Set<number>();
  const found = labels.map(label => {
    const known = SPLITS[label];
    if (known === undefined || used.has(known)) {
      return -1;
    }
    used.add(known);
    return known;
  });
  let next = 0;
  return found.map(colour => {
    if (colour >= 0) {
      return colour;
    }
    while (used.has(next)) {
      next++;
    }
    used.add(next);
    return next;
  });
}

/** The pattern of a curve: each run laid over the first one has a pattern of its own. */
export function dashOf(colour: number, run = 0): number {
  if (run > 0) {
    return 1 + ((run - 1) % (DASHES.length - 1));
  }
  return colour >= SOLID ? 1 : 0;
}

/** The value of a line at a step, or at the last step before it that the line has. */
export function shownAt(
  { data, lines }: IDrawing,
  curve: number,
  rank: number | null,
  step: number
): number | null {
  const line = lines.findIndex(
    each =>
      each.curve === curve &&
      each.rank === rank &&
      (each.role === 'mean' || each.role === 'rank')
  );
  for (let at = before(data[0], step); line >= 0 && at >= 0; at--) {
    const value = data[line + 1][at];
    if (typeof value === 'number') {
      return value;
    }
  }
  return null;
}

/** The index of the last of `steps` that is not after `step`; -1 if all are after it. */
export function before(steps: ArrayLike<number>, step: number): number {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

/** Whether any curve of this panel has values of several ranks. */
export function hasRanks(panel: IPanel): boolean {
  return panel.curves.some(curve => curve.each.length > 1);
}

/**
 * Lay out the lines of a panel.
 *
 * @param hidden The names of hidden curves.
 */
export function draw(
  panel: IPanel,
  options: IOptions,
  hidden: ReadonlySet<string>
): IDrawing {
  const layout = new Layout(panel, options);
  panel.curves.forEach((curve, i) => {
    if (!hidden.has(curve.name)) {
      layout.add(curve, i);
    }
  });
  return layout.drawing();
}

class Layout {
  constructor(panel: IPanel, options: IOptions) {
    this._options = options;
    this._colours = colours(panel.curves.map(curve => curve.label));
    this._alone = panel.curves.length === 1;
  }

  add(curve: ICurve, index: number): void {
    const colour = this._colours[index] % COLOURS;
    const dash = dashOf(this._colours[index], curve.run);
    const line = { curve: index, rank: null, colour, dash };
    if (this._options.perRank && curve.each.length > 1) {
      this._addRanks(curve, line);
      return;
    }
    const low = this._values(curve.low);
    const high = this._values(curve.high);
    const mean = this._values(curve.mean);
    const first = this._lines.length + 1;
    this._bands.push({ series: [first + 1, first], colour });
    this._push({ ...line, role: 'low' }, low);
    this._push({ ...line, role: 'high' }, high);
    this._pushSmooth({ ...line, role: 'mean' }, mean, true);
    this._tables.push([Array.from(curve.x), ...this._columns.splice(0)]);
  }

  drawing(): IDrawing {
    const data = this._tables.length
      ? uPlot.join(
          this._tables as uPlot.AlignedData[],
          // Gaps stay gaps: 1 is uPlot's NULL_RETAIN.
          this._tables.map(table => table.map(() => 1))
        )
      : ([[]] as uPlot.AlignedData);
    const key = this._lines.map(line =>
      [line.role, line.curve, line.rank, line.colour, line.dash].join()
    );
    const { x, log, fromZero } = this._options;
    const axes = [x, log, fromZero].join();
    return {
      key: `${axes} ${key.join(' ')}`,
      lines: this._lines,
      bands: this._bands,
      data
    };
  }

  private _addRanks(curve: ICurve, like: Omit<ILine, 'role'>): void {
    const coloured = this._alone && curve.each.length <= COLOURED_RANKS;
    const raw = curve.each.length <= LINES_WITH_RAW;
    curve.each.forEach((each, i) => {
      const line: ILine = { ...like, role: 'rank', rank: each.rank };
      if (coloured) {
        Object.assign(line, { colour: i, dash: dashOf(i) });
      }
      // Where a rank logs less often than others, its line runs on: that is not a gap.
      const values = this._values(each.values).map(value => value ?? undefined);
      this._pushSmooth(line, values, raw);
      const steps = Array.from(each.x ?? curve.x);
      this._tables.push([steps, ...this._columns.splice(0)]);
    });
  }

  private _pushSmooth(line: ILine, values: Value[], raw: boolean): void {
    if (this._options.smoothing > 0) {
      if (raw) {
        this._push({ ...line, role: 'raw' }, values);
      }
      values = smooth(values, this._options.smoothing);
    }
    this._push(line, values);
  }

  private _push(line: ILine, values: Value[]): void {
    this._lines.push(line);
    this._columns.push(values);
  }

  private _values(values: Float32Array): Value[] {
    const { log } = this._options;
    return Array.from(values, value =>
      Number.isFinite(value) && (!log || value > 0) ? value : null
    );
  }

  private readonly _options: IOptions;
  private readonly _colours: number[];
  private readonly _alone: boolean;
  private readonly _lines: ILine[] = [];
  private readonly _bands: IDrawing['bands'] = [];
  private readonly _tables: Value[][][] = [];
  private readonly _columns: Value[][] = [];
}
