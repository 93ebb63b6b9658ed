/** All of a job on the page: built once, then only changed, so nothing a person does is lost. */

import { Bars } from './bars';
import { make, setText } from './dom';
import { Head } from './head';
import { hasRanks } from './lines';
import type { IOptions } from './options';
import { Panel } from './panel';
import type { IPanel, IState } from './state';
import { Ranks, Values } from './tables';
import { Theme } from './theme';
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
    this.node.append(
      top,
      this._head.live,
      this._bars.node,
      this._grid,
      this._ranks.node,
      this._values.node,
      this._note
    );
  }

  readonly node = make('div', {
    class: 'nbdist-metrics',
    role: 'region',
    'aria-label': 'Live metrics',
    // JupyterLab's shortcuts: a space on a button must not scroll the notebook.
    'data-lm-suppress-shortcuts': 'true'
  });

  update(state: IState): void {
    this.node.dataset.state = state.state;
    this._head.update(state);
    this._bars.update(state.bars, state.state);
    this._toolbar.update(state.panels.length > 0, state.panels.some(hasRanks));
    this._updatePanels(state.panels);
    this._ranks.update(state);
    this._values.update(state.panels);
    setText(this._note, state.note);
  }

  dispose(): void {
    this._panels.forEach(panel => {
      panel.dispose();
    });
    this._theme.dispose();
    this.node.remove();
  }

  private _updatePanels(panels: IPanel[]): void {
    const gone = new Set(this._panels.keys());
    panels.forEach((shown, i) => {
      gone.delete(shown.title);
      let panel = this._panels.get(shown.title);
      if (!panel) {
        panel = new Panel(shown.title, this._shared);
        this._panels.set(shown.title, panel);
      }
      if (this._grid.childNodes[i] !== panel.node) {
        this._grid.insertBefore(panel.node, this._grid.childNodes[i] ?? null);
      }
      panel.update(shown);
    });
    gone.forEach(title => {
      this._panels.get(title)!.dispose();
      this._panels.delete(title);
    });
  }

  private readonly _options: IOptions = {
    log: false,
    apart: false,
    smoothing: 0
  };
  private readonly _head = new Head();
  private readonly _bars = new Bars();
  private readonly _grid = make('div', { class: 'nbdist-grid' });
  private readonly _ranks = new Ranks();
  private readonly _values = new Values();
  private readonly _note = make('p', { class: 'nbdist-note' });
  private readonly _panels = new Map<string, Panel>();
  private readonly _theme = new Theme(this.node, () => {
    this._panels.forEach(panel => {
      panel.recolour();
    });
  });
  private readonly _toolbar = new Toolbar(this._options, () => {
    this._panels.forEach(panel => {
      panel.redraw();
    });
  });
  private readonly _shared = {
    theme: this._theme,
    options: this._options,
    together: `nbdist-${views++}`
  };
}
