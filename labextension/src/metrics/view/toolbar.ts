/** The options of the charts, for all panels at once, and the field that filters panels. */

import { fit, make, setAttribute, setText } from '../elements/dom';
import type { Across, IOptions } from '../data/options';

/** If there are more panels, the field for a filter is shown. */
const MANY_PANELS = 6;

const ACROSS: Record<Across, string> = {
  step: 'Step',
  time: 'Time',
  epoch: 'Epoch'
};

export interface IToolbarEvents {
  /** Options were changed. */
  changed: () => void;
  /** The filter was changed. */
  filter: (text: string) => void;
}

/** What decides which options are offered. */
export interface IChoices {
  panels: number;
  /** Whether any curve has values of several ranks. */
  ranks: boolean;
  /** Whether a metric gives the epoch. */
  epochs: boolean;
}

export class Toolbar {
  /**
   * @param options The options that this toolbar changes.
   */
  constructor(options: IOptions, events: IToolbarEvents) {
    this._options = options;
    this._events = events;
    this._perRank = this._toggle(
      'perRank',
      'Per rank',
      'A line for each rank, or their mean and range'
    );
    this._slider.addEventListener('input', () => {
      options.smoothing = Number(this._slider.value);
      events.changed();
      this.show();
    });
    this._x.addEventListener('change', () => {
      options.x = this._x.value as Across;
      events.changed();
    });
    this._filter.addEventListener('input', () => {
      events.filter(this._filter.value);
    });
    this.node.append(
      this._filter,
      make('label', { class: 'nbdist-across' }, 'X axis', this._x),
      this._perRank,
      this._toggle(
        'log',
        'Log scale',
        'Values that are not above 0 are left out'
      ),
      this._toggle('fromZero', 'From 0', 'The values\u2019 axis begins at 0'),
      make(
        'label',
        { class: 'nbdist-smoothing' },
        'Smoothing',
        this._slider,
        this._weight
      )
    );
    this.show();
  }

  readonly node = make('div', {
    class: 'nbdist-toolbar',
    role: 'group',
    'aria-label': 'Chart options'
  });

  /** Offer the options that make sense now. */
  update({ panels, ranks, epochs }: IChoices): void {
    this.node.classList.toggle('nbdist-unused', panels === 0);
    this._perRank.hidden = !ranks;
    this._filter.hidden = panels <= MANY_PANELS && this._filter.value === '';
    const choices: Across[] = epochs
      ? ['step', 'time', 'epoch']
      : ['step', 'time'];
    fit(this._x, choices.length, () => make('option'));
    choices.forEach((across, i) => {
      const option = this._x.options[i];
      option.value = across;
      setText(option, ACROSS[across]);
    });
    this.show();
  }

  /** Show the present options. */
  show(): void {
    this._x.value = this._options.x;
    this._slider.value = String(this._options.smoothing);
    setText(this._weight, String(this._options.smoothing));
    for (const [name, button] of this._toggles) {
      setAttribute(button, 'aria-pressed', String(this._options[name]));
    }
  }

  private _toggle(
    name: 'log' | 'perRank' | 'fromZero',
    label: string,
    title: string
  ): HTMLButtonElement {
    const button = make(
      'button',
      { class: 'nbdist-button', type: 'button', title },
      label
    );
    button.addEventListener('click', () => {
      this._options[name] = !this._options[name];
      this._events.changed();
      this.show();
    });
    this._toggles.push([name, button]);
    return button;
  }

  private readonly _options: IOptions;
  private readonly _events: IToolbarEvents;
  private readonly _toggles: [
    'log' | 'perRank' | 'fromZero',
    HTMLButtonElement
  ][] = [];
  private readonly _perRank: HTMLElement;
  private readonly _x = make('select', { class: 'nbdist-button' });
  private readonly _filter = make('input', {
    type: 'search',
    class: 'nbdist-filter',
    placeholder: 'Filter metrics',
    'aria-label': 'Filter metrics'
  });
  private readonly _weight = make('span', { class: 'nbdist-weight' });
  private readonly _slider = make('input', {
    type: 'range',
    min: '0',
    max: '0.99',
    step: '0.01',
    'aria-label': 'Smoothing'
  });
}
