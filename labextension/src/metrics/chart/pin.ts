/** The button that pins a panel; pinned panels come first. */

import { make, setAttribute } from '../elements/dom';
import { pinIcon } from './chartIcons';

export class Pin {
  /**
   * @param clicked Called with whether the panel is to be pinned.
   */
  constructor(title: string, clicked: (on: boolean) => void) {
    setAttribute(this.node, 'aria-label', `Pin ${title}`);
    this.node.append(pinIcon());
    this.node.addEventListener('click', () => {
      clicked(!this._on);
    });
    this.on = false;
  }

  readonly node = make('button', {
    class: 'nbdist-icon',
    type: 'button'
  });

  set on(on: boolean) {
    this._on = on;
    setAttribute(this.node, 'aria-pressed', String(on));
    setAttribute(
      this.node,
      'title',
      on ? 'Unpin this chart' : 'Pin this chart before all others'
    );
  }

  private _on = false;
}
