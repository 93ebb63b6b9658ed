/** One uPlot chart: made again when its lines change, given new data when only numbers change. */

import uPlot from 'uplot';
import type { IDrawing, ILine } from './lines';
import { drawMarks } from './marks';
import { Looks } from './looks';
import type { IOptions, IRange } from '../data/options';
import type { Mark } from '../data/state';
import { placeAxis, valueAxis, valueScale } from './scales';
import type { Theme } from '../elements/theme';

/** The events of a chart. */
export interface IPlotEvents {
  /** The cursor is at the step with this index, or has left the chart. */
  hover: (index: number | null) => void;
  /** The mouse is next to this line, or to no line. */
  focus: (line: ILine | null) => void;
  /** The user has selected a range; null to show all again. */
  zoom: (range: IRange | null) => void;
}

/** The index for a step that is out of this chart's sight; uPlot takes null, but its types do not. */
const NOWHERE = null as unknown as number;

export class Plot {
  /**
   * @param host The element that the chart fills.
   * @param together Charts with the same key show the cursor at the same step.
   */
  constructor(
    host: HTMLElement,
    theme: Theme,
    together: string,
    events: IPlotEvents
  ) {
    this._host = host;
    this._theme = theme;
    this._together = together;
    this._events = events;
    this._resize = new ResizeObserver(() => {
      this._fit();
    });
    this._resize.observe(host);
  }

  /** Whether the mouse is over this chart; the cursor also follows the mouse over other charts. */
  hovered = false;

  /** Draw now, or as soon as the chart has a size. */
  show(
    drawing: IDrawing,
    marks: Mark[],
    options: Readonly<IOptions>,
    range: IRange | null
  ): void {
    this._shown = { drawing, marks, options: { ...options }, range };
    if (this._dragging || this._host.clientWidth === 0) {
      return; // `_drop` or `_fit` draws later
    }
    if (this._chart && this._key === drawing.key) {
      const chart = this._chart;
      // In a batch, the new scale holds at once, also for code that then moves the cursor.
      chart.batch(() => {
        chart.setData(drawing.data, false);
        chart.setScale('x', this._range());
      });
    } else {
      this._make();
    }
  }

  /** Redraw in the present colours. */
  recolour(): void {
    this._chart?.redraw(false, true);
  }

  /** Put the cursor at the step with this index, as the mouse would. */
  point(index: number | null): void {
    const chart = this._chart;
    if (!chart) {
      return;
    }
    const left =
      index === null ? -10 : chart.valToPos(chart.data[0][index], 'x');
    chart.setCursor({
      left,
      top: index === null ? -10 : chart.over.clientHeight / 2
    });
  }

  /** The index of the step at the cursor. */
  get index(): number | null {
    return this._chart?.cursor.idx ?? null;
  }

  /** The place of a step, in pixels from the left edge of the host. */
  left(index: number): number {
    const chart = this._chart!;
    return chart.over.offsetLeft + chart.valToPos(chart.data[0][index], 'x');
  }

  dispose(): void {
    this._resize.disconnect();
    this._unmake();
  }

  private _fit(): void {
    const [width, height] = [this._host.clientWidth, this._host.clientHeight];
    if (width === 0 || !this._shown) {
      return;
    }
    if (!this._chart) {
      this._make();
    } else if (this._chart.width !== width || this._chart.height !== height) {
      this._chart.setSize({ width, height });
    }
  }

  private _make(): void {
    this._unmake();
    const { drawing } = this._shown!;
    this._key = drawing.key;
    const chart = new uPlot(this._options(), drawing.data, this._host);
    this._chart = chart;
    chart.batch(() => {
      chart.setScale('x', this._range());
    });
    chart.over.addEventListener('mouseenter', () => {
      this.hovered = true;
    });
    chart.over.addEventListener('mouseleave', () => {
      this.hovered = false;
      this._events.hover(null);
    });
    chart.over.addEventListener('mousedown', () => {
      this._dragging = true;
      window.addEventListener('mouseup', this._drop, { once: true });
    });
  }

  private _unmake(): void {
    window.removeEventListener('mouseup', this._drop);
    this._dragging = false;
    this._chart?.destroy();
    this._chart = null;
  }

  /** Draw what has come while the user selected a range. */
  private readonly _drop = (): void => {
    this._dragging = false;
    window.setTimeout(() => {
      if (this._shown && this._chart) {
        const { drawing, marks, options, range } = this._shown;
        this.show(drawing, marks, options, range);
      }
    });
  };

  private _range(): IRange {
    const { drawing, range } = this._shown!;
    const steps = drawing.data[0];
    if (range) {
      return range;
    }
    if (steps.length === 0) {
      return { min: 0, max: 1 };
    }
    const [min, max] = [steps[0], steps[steps.length - 1]];
    return min < max ? { min, max } : { min: min - 1, max: max + 1 };
  }

  private _options(): uPlot.Options {
    const { drawing, options } = this._shown!;
    const looks = new Looks(drawing, this._theme, () => this._near);
    return {
      width: this._host.clientWidth,
      height: this._host.clientHeight,
      padding: [10, 12, 0, 0],
      legend: { show: false },
      series: looks.series,
      bands: looks.bands,
      scales: { x: { time: false, auto: false }, y: valueScale(options) },
      axes: [
        placeAxis(this._theme, options.x),
        valueAxis(this._theme, options.log)
      ],
      focus: { alpha: looks.apart ? 0.3 : 1 },
      cursor: {
        y: false,
        move: (chart, left, top) => [snapped(chart, left), top],
        dataIdx: (chart, series, index, step) =>
          within(chart.scales.x, step)
            ? lastUpTo(chart.data[series], index)
            : NOWHERE,
        points: { size: looks.pointSize },
        drag: { x: true, y: false, dist: 6, setScale: false },
        focus: { prox: looks.apart ? 24 : -1 },
        sync: {
          key: this._together,
          setSeries: false,
          scales: ['x', null],
          // Charts share the cursor, but not the selection.
          filters: {
            pub: type => type === 'mousemove' || type === 'mouseleave'
          }
        },
        bind: {
          dblclick: () => () => {
            this._events.zoom(null);
            return null;
          }
        }
      },
      hooks: this._hooks(drawing, options)
    };
  }

  private _hooks(drawing: IDrawing, options: IOptions): uPlot.Hooks.Arrays {
    return {
      setCursor: [
        chart => {
          this._events.hover(chart.cursor.idx ?? null);
        }
      ],
      setSeries: [
        (_chart, series, change: uPlot.Series & { focus?: boolean }) => {
          if (change.focus !== undefined) {
            const line =
              series === null ? undefined : drawing.lines[series - 1];
            this._near = (change.focus && line) || null;
            this._events.focus(this._near);
          }
        }
      ],
      setSelect: [
        chart => {
          this._select(chart);
        }
      ],
      draw: [
        chart => {
          drawMarks(chart, this._shown!.marks, this._theme, options.x);
        }
      ]
    };
  }

  private _select(chart: uPlot): void {
    const { left, width } = chart.select;
    if (width === 0) {
      return;
    }
    const min = chart.posToVal(left, 'x');
    const max = chart.posToVal(left + width, 'x');
    chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this._events.zoom({ min, max });
  }

  private readonly _host: HTMLElement;
  private readonly _theme: Theme;
  private readonly _together: string;
  private readonly _events: IPlotEvents;
  private readonly _resize: ResizeObserver;
  private _chart: uPlot | null = null;
  private _key = '';
  private _dragging = false;
  private _near: ILine | null = null;
  private _shown: {
    drawing: IDrawing;
    marks: Mark[];
    options: IOptions;
    range: IRange | null;
  } | null = null;
}

function within({ min, max }: uPlot.Scale, step: number): boolean {
  return min !== undefined && max !== undefined && min <= step && step <= max;
}

/** Move the cursor to the nearest step. */
function snapped(chart: uPlot, left: number): number {
  const steps = chart.data[0];
  const seen = left >= 0 && within(chart.scales.x, chart.posToVal(left, 'x'));
  return seen && steps.length > 0
    ? chart.valToPos(steps[chart.posToIdx(left)], 'x')
    : left;
}

function lastUpTo(values: ArrayLike<number | null | undefined>, index: number) {
  for (let at = index; at >= 0; at--) {
    if (typeof values[at] === 'number') {
      return at;
    }
  }
  return index;
}
