/** The view of a job. Its elements are made once and then only changed, so the user's choices last. */

import { Actions } from './viewActions';
import { Bars } from './bars';
import { make, setText } from '../elements/dom';
import { Grid } from './grid';
import { Head } from './head';
import { page } from '../host';
import { hasRanks } from '../chart/lines';
import type { Across, IOptions, IRange } from '../data/options';
import { originOf, type IOrigin } from '../chart/axisPlaces';
import { preferences } from '../data/preferences';
import { Resources } from './resources';
import { laidOver, Runs, type IRun } from '../data/runs';
import type { ICurve, IState } from '../data/state';
import { Ranks, Values } from './tables';
import { Theme } from '../elements/theme';
import { Toolbar } from './toolbar';

let views = 0;

export class View {
  constructor() {
    const top = make(
      'div',
      { class: 'nbdist-top' },
      this._head.node,
      this._toolbar.node
    );
    this._toolbar.node.append(this._actions.node);
    this.node.append(
      top,
      this._head.live,
      this._bars.node,
      this._grid.node,
      this._resources.node,
      this._ranks.node,
      this._values.node,
      this._note
    );
  }

  readonly node = make('div', {
    class: 'nbdist-metrics',
    role: 'region',
    'aria-label': 'Live metrics',
    // Without JupyterLab's shortcuts: a space on a button must not scroll the notebook.
    'data-lm-suppress-shortcuts': 'true'
  });

  /** Whether the view has a tab of its own. */
  set inTab(inTab: boolean) {
    this._actions.inTab = inTab;
  }

  update(state: IState): void {
    this._own = state;
    this._shown = this._runs.all(state);
    const panels = laidOver(this._shown);
    this.node.dataset.state = state.state;
    this._origin = originOf(state);
    this._actions.update(state);
    this._head.update(state);
    this._bars.update(state.bars, state.state);
    this._choose(this._x);
    this._toolbar.update({
      panels: panels.length,
      ranks: panels.some(hasRanks),
      epochs: this._origin.epochs !== null
    });
    this._grid.update(panels);
    this._resources.update(state);
    this._ranks.update(state);
    this._values.update(panels);
    this._tell();
  }

  dispose(): void {
    this._unfollow();
    this._leave();
    this._runs.dispose();
    this._grid.dispose();
    this._resources.dispose();
    this._theme.dispose();
    this.node.remove();
  }

  /** Set the horizontal axis; while no metric gives the epoch, steps are shown instead of epochs. */
  private _choose(x: Across): void {
    this._x = x;
    const shown = x === 'epoch' && !this._origin.epochs ? 'step' : x;
    if (this._options.x !== shown) {
      this._options.x = shown;
      this._redraw();
    }
  }

  /** Show below the view which runs are missing from the charts, and why. */
  private _tell(): void {
    const without = this._shown
      .slice(1)
      .filter(({ state }) => !originOf(state).epochs);
    const lacking =
      this._options.x === 'epoch'
        ? without.map(
            ({ name }) => `${name} has no metric named epoch and is not drawn`
          )
        : [];
    const awaited = this._runs.awaited.map(
      name => `Waiting for the metrics of ${name}`
    );
    const note = this._own?.note ?? '';
    setText(
      this._note,
      [...lacking, ...awaited, note].filter(Boolean).join('. ')
    );
  }

  /** Take the settings that have changed; other options keep what the user chose in this view. */
  private _prefer(): void {
    const { charts } = preferences;
    const changed = (name: keyof IOptions): boolean =>
      charts[name] !== this._preferred[name];
    if (changed('x')) {
      this._choose(charts.x);
    }
    const { x, ...others } = charts;
    for (const name of Object.keys(others) as (keyof typeof others)[]) {
      if (changed(name)) {
        Object.assign(this._options, { [name]: charts[name] });
      }
    }
    this._preferred = { ...charts, x };
    this._toolbar.show();
    this._grid.arrange();
    this._redraw();
  }

  private _redraw(): void {
    if (this._options.x !== this._drawn) {
      this._drawn = this._options.x;
      this._shared.range = null; // steps are no seconds
    }
    this._grid.redraw();
    this._tell();
  }

  private _preferred: Readonly<IOptions> = { ...preferences.charts };
  private readonly _options: IOptions = { ...preferences.charts };
  private _x: Across = this._options.x;
  private _drawn: Across = this._options.x;
  private _own: IState | null = null;
  private _shown: IRun[] = [];
  private readonly _runs: Runs = new Runs(() => {
    if (this._own) {
      this.update(this._own);
    }
  });
  private readonly _actions = new Actions(this._runs, () => this._shown);
  private _origin: IOrigin = { began: 0, epochs: null };
  private readonly _head = new Head();
  private readonly _bars = new Bars();
  private readonly _ranks = new Ranks();
  private readonly _values = new Values();
  private readonly _note = make('p', { class: 'nbdist-note' });
  private readonly _theme: Theme = new Theme(this.node, () => {
    this._grid.recolour();
    this._resources.recolour();
  });
  private readonly _resources: Resources = new Resources(
    this._theme,
    `nbdist-${views++}`
  );
  private readonly _toolbar: Toolbar = new Toolbar(this._options, {
    changed: () => {
      if (this._options.x !== this._drawn) {
        this._x = this._options.x; // the user has chosen it
      }
      this._redraw();
    },
    filter: text => {
      this._grid.filter = text;
    }
  });
  private readonly _shared = {
    theme: this._theme,
    options: this._options,
    together: `nbdist-${views++}`,
    range: null as IRange | null,
    zoom: (range: IRange | null): void => {
      this._shared.range = range;
      this._grid.redraw();
    },
    origin: (curve: ICurve): IOrigin =>
      curve.run ? originOf(this._shown[curve.run].state) : this._origin,
    pin: (title: string, on: boolean): void => {
      preferences.pin(title, on);
    }
  };
  private readonly _grid: Grid = new Grid(this._shared, preferences);
  private readonly _leave = page.follow(() => {
    if (this._own) {
      this._actions.update(this._own);
    }
  });
  private readonly _unfollow = preferences.follow(() => {
    this._prefer();
  });
}
