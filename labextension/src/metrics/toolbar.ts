/** The options of the charts: for all panels at once. */

import { make, setAttribute, setText } from './dom';
import type { IOptions } from './options';

export class Toolbar {
  /**
   * @param options Changed by what a person does here.
   * @param changed Called afterwards.
   */
  constructor(options: IOptions, changed: () => void) {
    this._apart = toggle(
      'Per rank',
      'A line for each rank, or their mean and range',
      on => {
        options.apart = on;
        changed();
      }
    );
    const log = toggle(
      'Log scale',
      'Values that are not above 0 are left out',
      on => {
        options.log = on;
        changed();
      }
    );
    const value = make('span', { class: 'nbdist-weight' }, '0');
    const slider = make('input', {
      type: 'range',
      min: '0',
      max: '0.99',
      step: '0.01',
      value: '0',
      'aria-label': 'Smoothing'
    });
    slider.addEventListener('input', () => {
      options.smoothing = Number(slider.value);
      setText(value, slider.value);
      changed();
    });
    this.node.append(
      this._apart,
      log,
      make('label', { class: 'nbdist-smoothing' }, 'Smoothing', slider, value)
    );
  }

  readonly node = make('div', {
    class: 'nbdist-toolbar',
    role: 'group',
    'aria-label': 'Chart options'
  });

  /**
   * @param some Whether there are any curves.
   * @param ranks Whether any of them is of several ranks.
   */
  update(some: boolean, ranks: boolean): void {
    this.node.classList.toggle('nbdist-unused', !some);
    this._apart.hidden = !ranks;
  }

  private readonly _apart: HTMLElement;
}

function toggle(
  name: string,
  title: string,
  changed: (on: boolean) => void
): HTMLElement {
  const button = make(
    'button',
    { class: 'nbdist-button', type: 'button', title, 'aria-pressed': 'false' },
    name
  );
  button.addEventListener('click', () => {
    const on = button.getAttribute('aria-pressed') !== 'true';
    setAttribute(button, 'aria-pressed', String(on));
    changed(on);
  });
  return button;
}
