/** A button that opens a sheet of choices below it. */

import { make } from './dom';

export class Menu {
  /**
   * @param face What the button shows.
   * @param label The button's name.
   * @param fill Makes the content of the sheet, each time the sheet opens.
   */
  constructor(face: Node | string, label: string, fill: () => HTMLElement[]) {
    this._summary = make(
      'summary',
      { 'aria-label': label, title: label },
      face
    );
    this.node.append(this._summary, this._sheet);
    this.node.addEventListener('toggle', () => {
      this._sheet.replaceChildren(...(this.node.open ? fill() : []));
    });
    this.node.addEventListener('keydown', event => {
      if (event.key === 'Escape' && this.node.open) {
        event.stopPropagation();
        this.close();
      }
    });
    this.node.addEventListener('focusout', event => {
      // After a click on something that takes no focus, `relatedTarget` is null: the sheet stays open.
      if (
        event.relatedTarget instanceof Node &&
        !this.node.contains(event.relatedTarget)
      ) {
        this.node.open = false;
      }
    });
  }

  readonly node = make('details', { class: 'nbdist-menu' });

  close(): void {
    this.node.open = false;
    this._summary.focus();
  }

  private readonly _summary: HTMLElement;
  private readonly _sheet = make('div', { class: 'nbdist-sheet' });
}

/** One choice of a menu. */
export function item(label: string, clicked: () => void): HTMLButtonElement {
  const button = make(
    'button',
    { class: 'nbdist-item', type: 'button' },
    label
  );
  button.addEventListener('click', clicked);
  return button;
}
