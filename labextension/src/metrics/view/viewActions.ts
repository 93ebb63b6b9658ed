/** The actions of a view as a whole: compare with other jobs, open in a tab, save the values. */

import { csvOf, isThinned } from '../data/csv';
import { make, setText } from '../elements/dom';
import { fileName, saveFile } from '../elements/files';
import { page } from '../host';
import { item, Menu } from '../elements/menu';
import type { IRun, Runs } from '../data/runs';
import type { IState } from '../data/state';

export class Actions {
  /**
   * @param shown Returns the runs in the view, its own first; empty before the first state.
   */
  constructor(
    private readonly _runs: Runs,
    private readonly _shown: () => IRun[]
  ) {
    this._tab.addEventListener('click', () => {
      page.host?.openTab(this._shown()[0].state);
    });
    const save = item('CSV', () => {
      void this._save();
    });
    save.className = 'nbdist-button';
    save.title = 'Save all values as a CSV file';
    this.node.append(this._compare.node, this._tab, save, this._told);
  }

  readonly node = make('span', { class: 'nbdist-actions' });

  /** Whether the view has a tab of its own. */
  inTab = false;

  update(state: IState): void {
    const { host } = page;
    this._tab.hidden = !host || this.inTab || state.folder === '';
    this._compare.node.hidden = this._others(state).length === 0;
  }

  private _others(own: IState) {
    const known = page.host?.others() ?? [];
    const gone = this._runs.chosen.filter(
      each =>
        !known.some(
          ({ folder, job }) => folder === each.folder && job === each.job
        )
    );
    return [...known, ...gone].filter(
      ({ folder, job }) => folder !== own.folder || job !== own.job
    );
  }

  private _choices(): HTMLElement[] {
    return this._others(this._shown()[0].state).map(other => {
      const box = make('input', { type: 'checkbox' });
      box.checked = this._runs.has(other);
      box.addEventListener('change', () => {
        this._runs.choose(other, box.checked);
      });
      return make('label', { class: 'nbdist-item' }, box, other.name);
    });
  }

  /** Save all values from the server; for runs that the server lacks, the values of the page. */
  private async _save(): Promise<void> {
    const runs = this._shown();
    const saved = await Promise.all(
      runs.map(
        async ({ name, state }) =>
          (await page.host?.saveValues(state, name)) ?? false
      )
    );
    const missing = runs.filter((_, i) => !saved[i]);
    if (missing.length === 0) {
      setText(this._told, '');
      return;
    }
    const thinned = missing.some(({ state }) => isThinned(state));
    const content = csvOf(missing.map(({ name, state }) => [name, state]));
    const name = fileName('metrics', ...missing.map(run => run.name));
    saveFile(
      new Blob([content], { type: 'text/csv' }),
      `${name}${thinned ? '-thinned' : ''}.csv`
    );
    setText(
      this._told,
      thinned
        ? 'Saved the points that this page has: long curves are thinned. All values are in job.metrics.'
        : 'Saved the values that this page has.'
    );
  }

  private readonly _compare = new Menu(
    'Compare\u2026',
    'Compare with other jobs',
    () => this._choices()
  );
  private readonly _tab = make(
    'button',
    {
      class: 'nbdist-button',
      type: 'button',
      title: 'Show these metrics in a tab'
    },
    'Open in tab'
  );
  private readonly _told = make('span', {
    class: 'nbdist-told',
    'aria-live': 'polite' // the role `status` belongs to the state of the job
  });
}
