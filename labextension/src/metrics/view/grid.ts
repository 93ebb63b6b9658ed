/** The panels in their order, pinned ones first; panels that do not match the filter are hidden. */

import { make, setText } from '../elements/dom';
import { Panel, type IShared } from '../chart/chartPanel';
import type { Preferences } from '../data/preferences';
import type { IPanel } from '../data/state';

export class Grid {
  constructor(shared: IShared, preferences: Preferences) {
    this._shared = shared;
    this._preferences = preferences;
    this.node.append(this._grid, this._nothing);
  }

  readonly node = make('div');

  update(panels: IPanel[]): void {
    this._shown = panels;
    const gone = new Set(this._panels.keys());
    panels.forEach(shown => {
      gone.delete(shown.title);
      let panel = this._panels.get(shown.title);
      if (!panel) {
        panel = new Panel(shown.title, this._shared);
        this._panels.set(shown.title, panel);
      }
      panel.update(shown);
    });
    gone.forEach(title => {
      this._panels.get(title)!.dispose();
      this._panels.delete(title);
    });
    this.arrange();
  }

  /** Show only panels whose names match these words; see `matches`. */
  set filter(text: string) {
    this._filter = text;
    this.arrange();
  }

  /** Put the panels into their order. */
  arrange(): void {
    const { pinned } = this._preferences;
    const focused = document.activeElement;
    const some = this._shown.some(shown => matches(shown, this._filter));
    ordered(this._shown, pinned).forEach((shown, i) => {
      const panel = this._panels.get(shown.title)!;
      panel.pinned = pinned.includes(shown.title);
      panel.node.hidden = !matches(shown, this._filter);
      if (this._grid.childNodes[i] !== panel.node) {
        this._grid.insertBefore(panel.node, this._grid.childNodes[i] ?? null);
      }
    });
    // A node that is moved loses the focus.
    if (
      focused instanceof HTMLElement &&
      focused !== document.activeElement &&
      this._grid.contains(focused)
    ) {
      focused.focus();
    }
    setText(
      this._nothing,
      some || this._shown.length === 0
        ? ''
        : `No metric has \u201c${this._filter}\u201d in its name`
    );
  }

  redraw(): void {
    this._panels.forEach(panel => {
      panel.redraw();
    });
  }

  recolour(): void {
    this._panels.forEach(panel => {
      panel.recolour();
    });
  }

  dispose(): void {
    this._panels.forEach(panel => {
      panel.dispose();
    });
  }

  private readonly _shared: IShared;
  private readonly _preferences: Preferences;
  private readonly _grid = make('div', { class: 'nbdist-grid' });
  private readonly _nothing = make('p', {
    class: 'nbdist-note',
    role: 'status'
  });
  private readonly _panels = new Map<string, Panel>();
  private _shown: IPanel[] = [];
  private _filter = '';
}

/** Sort panels: pinned ones first, in the order of `pinned`. */
export function ordered(panels: IPanel[], pinned: readonly string[]): IPanel[] {
  const first = pinned.flatMap(
    title => panels.find(panel => panel.title === title) ?? []
  );
  return [...first, ...panels.filter(panel => !first.includes(panel))];
}

/** Whether the title of a panel, or the name of one of its curves, contains all words of a text. */
export function matches({ title, curves }: IPanel, text: string): boolean {
  const words = text.toLowerCase().split(/\s+/);
  return [title, ...curves.map(curve => curve.name)].some(name =>
    words.every(word => name.toLowerCase().includes(word))
  );
}
