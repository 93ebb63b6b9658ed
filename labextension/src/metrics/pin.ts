/** The button that lets a panel stand before all others. */

import { make, setAttribute } from './dom';

const SVG = 'http://www.w3.org/2000/svg';
const PIN =
  'M10.5 1.5 14.5 5.5 12.8 6.3 10.4 8.7 10.2 12.2 8.9 13.5 5.9 10.5 2.4 14 2 13.6 5.5 10.1 2.5 7.1 3.8 5.8 7.3 5.6 9.7 3.2z';

export class Pin {
  /**
   * @param clicked Told whether the panel is to be pinned.
   */
  constructor(title: string, clicked: (on: boolean) => void) {
    const icon = document.createElementNS(SVG, 'svg');
    icon.setAttribute('viewBox', '0 0 16 16');
    icon.setAttribute('aria-hidden', 'true');
    const shape = document.createElementNS(SVG, 'path');
    shape.setAttribute('d', PIN);
    icon.append(shape);
    setAttribute(this.node, 'aria-label', `Pin ${title}`);
    this.node.append(icon);
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
