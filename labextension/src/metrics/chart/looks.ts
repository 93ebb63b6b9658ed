/** How lines and the ranges between them look. */

import type uPlot from 'uplot';
import { DASHES, type IDrawing, type ILine } from './lines';
import type { Theme } from '../elements/theme';

/** If there are more lines of ranks, all are faint but the line next to the mouse. */
const DENSE = 16;

/** Lines for uPlot. Colours are functions, so each redraw uses the present theme. */
export class Looks {
  /**
   * @param near Returns the line next to the mouse.
   */
  constructor(drawing: IDrawing, theme: Theme, near: () => ILine | null) {
    this._lines = drawing.lines;
    this._theme = theme;
    this._near = near;
    const ranks = drawing.lines.filter(line => line.role === 'rank');
    this.apart = ranks.length > 0;
    this._dense = ranks.length > DENSE;
    this.series = [{}, ...drawing.lines.map(line => this._series(line))];
    this.bands = drawing.bands.map(({ series, colour }) => ({
      series,
      fill: () => theme.of(`curve-${colour}`, 0.18)
    }));
  }

  readonly series: uPlot.Series[];
  readonly bands: uPlot.Band[];
  /** Whether ranks have lines of their own. */
  readonly apart: boolean;

  /** The size of the point where the cursor meets a series; 0 for no point. */
  readonly pointSize = (_chart: uPlot, series: number): number => {
    const line = this._lines[series - 1] as ILine | undefined;
    const shown = line?.role === 'mean' || line?.role === 'rank';
    return shown && (!this._dense || line === this._near()) ? 8 : 0;
  };

  private _series(line: ILine): uPlot.Series {
    switch (line.role) {
      case 'low':
      case 'high':
        return { width: 0, points: { show: false } };
      case 'raw':
        return {
          stroke: () => this._theme.of(`curve-${line.colour}`, 0.35),
          width: 1.25,
          points: { show: false }
        };
      case 'mean':
      case 'rank': {
        const faint = () => this._dense && line !== this._near();
        const stroke = () =>
          this._theme.of(`curve-${line.colour}`, faint() ? 0.4 : 1);
        return {
          stroke,
          width: line.role === 'mean' ? 2 : 1.25,
          dash: line.dash ? DASHES[line.dash] : undefined,
          points: { size: 5, fill: stroke }
        };
      }
    }
  }

  private readonly _lines: ILine[];
  private readonly _theme: Theme;
  private readonly _near: () => ILine | null;
  private readonly _dense: boolean;
}
