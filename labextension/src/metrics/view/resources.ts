/** Charts of the CPU, memory and the like that ranks have used over the run; folded at first. */

import { make } from '../elements/dom';
import { Grid } from './grid';
import { DEFAULTS, type IRange } from '../data/options';
import type { IOrigin } from '../chart/axisPlaces';
import { Preferences } from '../data/preferences';
import type { ICurve, IPanel, IRankCurve, IState } from '../data/state';
import type { Theme } from '../elements/theme';

/** How the titles of panels with bytes end. */
const BYTES = [', bytes', ', bytes/s'];
const UNITS = ['bytes', 'kB', 'MB', 'GB', 'TB'];

export class Resources {
  /**
   * @param theme The theme of the view.
   * @param together Charts with the same key show the cursor at the same time.
   */
  constructor(theme: Theme, together: string) {
    this._shared = {
      theme,
      // Options that the user chooses for the metrics do not change these charts.
      options: { ...DEFAULTS, x: 'time' as const, perRank: true },
      together,
      range: null as IRange | null,
      zoom: (range: IRange | null): void => {
        this._shared.range = range;
        this._grid.redraw();
      },
      origin: (): IOrigin => ({ began: this._began, epochs: null }),
      pin: null
    };
    this._grid = new Grid(this._shared, new Preferences());
    this.node.append(this._grid.node);
    this.node.hidden = true;
  }

  readonly node = make(
    'details',
    { class: 'nbdist-resources' },
    make('summary', {}, 'Resources')
  );

  update({ resources, began }: Pick<IState, 'resources' | 'began'>): void {
    this._began = began;
    this.node.hidden = resources.length === 0;
    this._grid.update(resources.map(inUnits));
  }

  recolour(): void {
    this._grid.recolour();
  }

  dispose(): void {
    this._grid.dispose();
  }

  private readonly _shared;
  private readonly _grid: Grid;
  private _began = 0;
}

/** Convert a panel of bytes to kB, MB, GB or TB, as suits its largest value. */
export function inUnits(panel: IPanel): IPanel {
  const end = BYTES.find(each => panel.title.endsWith(each));
  const most = Math.max(0, ...panel.curves.map(({ best }) => best[1] ?? 0));
  let unit = 0;
  while (most / 1000 ** unit >= 1000 && unit < UNITS.length - 1) {
    unit++;
  }
  if (!end || unit === 0) {
    return panel;
  }
  return {
    title:
      panel.title.slice(0, -end.length) + end.replace('bytes', UNITS[unit]),
    curves: panel.curves.map(curve => divided(curve, 1000 ** unit))
  };
}

function divided(curve: ICurve, by: number): ICurve {
  const part = (values: Float32Array): Float32Array =>
    values.map(value => value / by);
  const one = (value: number | null): number | null =>
    value === null ? null : value / by;
  return {
    ...curve,
    last: one(curve.last),
    best: [one(curve.best[0]), one(curve.best[1])],
    mean: part(curve.mean),
    low: part(curve.low),
    high: part(curve.high),
    each: curve.each.map((rank): IRankCurve => ({
      ...rank,
      values: part(rank.values)
    }))
  };
}
