/** The names of a panel's curves with their last values; a click hides or shows a curve. */

import { fit, make, setAttribute, setText } from '../elements/dom';
import { colours, dashOf } from './lines';
import { short } from '../data/numbers';
import type { IOptions } from '../data/options';
import type { ICurve, IPanel } from '../data/state';
import { COLOURS } from '../elements/theme';

/** The styles of borders that are most like the patterns in `DASHES`. */
const STYLES = ['solid', 'dashed', 'dotted', 'double'];

/** A short line in the colour and pattern of a curve. */
export function swatch(colour: number, dash: number): HTMLElement {
  const node = make('span', { class: 'nbdist-swatch', 'aria-hidden': 'true' });
  paint(node, colour, dash);
  return node;
}

function paint(node: HTMLElement, colour: number, dash: number): void {
  setAttribute(
    node,
    'style',
    `border-top: 3px ${STYLES[dash]} var(--nbdist-curve-${colour % COLOURS})`
  );
}

export class Legend {
  /**
   * @param hidden The names of hidden curves; clicks change this set.
   * @param changed Called after a click.
   */
  constructor(hidden: Set<string>, changed: () => void) {
    this._hidden = hidden;
    this._changed = changed;
    this.node.append(this._chips, this._ranks);
  }

  readonly node = make('span', { class: 'nbdist-legend' });

  update({ title, curves }: IPanel, options: IOptions): void {
    const all = colours(curves.map(curve => curve.label));
    fit(this._chips, curves.length, () => this._chip());
    curves.forEach((curve, i) => {
      const chip = this._chips.childNodes[i] as HTMLButtonElement;
      chip.disabled = curves.length === 1;
      const [line, name, value] = chip.childNodes as unknown as HTMLElement[];
      chip.dataset.name = curve.name;
      setAttribute(chip, 'title', `Hide or show ${curve.name}`);
      setAttribute(chip, 'aria-pressed', String(!this._hidden.has(curve.name)));
      paint(line, all[i], dashOf(all[i], curve.run));
      setText(name, curve.label);
      // The label of a lone curve repeats the title, so it is left to screen readers.
      name.classList.toggle(
        'nbdist-unseen',
        curves.length === 1 && curve.label === title
      );
      setText(value, short(curve.last));
    });
    this._showRanks(curves, options);
  }

  /** Show ranks in the legend: only those of a lone curve, if there is a colour for each rank. */
  private _showRanks(curves: ICurve[], options: IOptions): void {
    const each = curves.length === 1 && options.perRank ? curves[0].each : [];
    const shown = each.length > 1 && each.length <= COLOURS ? each : [];
    this.node.classList.toggle('nbdist-by-rank', shown.length > 0);
    fit(this._ranks, shown.length, () =>
      make('span', { class: 'nbdist-rank' }, swatch(0, 0), make('span'))
    );
    shown.forEach(({ rank }, i) => {
      const [line, name] = this._ranks.childNodes[i]
        .childNodes as unknown as HTMLElement[];
      paint(line, i, dashOf(i));
      setText(name, `rank ${rank}`);
    });
  }

  private _chip(): HTMLElement {
    const chip = make(
      'button',
      { class: 'nbdist-chip', type: 'button' },
      swatch(0, 0),
      make('span', { class: 'nbdist-name' }),
      make('span', { class: 'nbdist-last' })
    );
    chip.addEventListener('click', () => {
      const name = chip.dataset.name!;
      if (!this._hidden.delete(name)) {
        this._hidden.add(name);
      }
      this._changed();
    });
    return chip;
  }

  private readonly _hidden: Set<string>;
  private readonly _changed: () => void;
  private readonly _chips = make('span', { class: 'nbdist-chips' });
  private readonly _ranks = make('span', { class: 'nbdist-chips' });
}
