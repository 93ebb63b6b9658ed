/** Draws a view at most once per frame of the screen, or shows why it cannot be drawn. */

import { make } from '../elements/dom';
import type { IState } from '../data/state';
import { View } from './view';

export class Drawn {
  /**
   * @param inTab Whether the view has a tab of its own.
   */
  constructor(inTab = false) {
    this._view.inTab = inTab;
    this._trouble.hidden = true;
    this.node.append(this._view.node, this._trouble);
  }

  readonly node = make('div');

  /** Show a state with the next frame, which does not come before the page is visible. */
  show(state: IState): void {
    this._next = state;
    this.complain(''); // a trouble that is reported later stays
    this._frame ||= requestAnimationFrame(() => {
      this._frame = 0;
      this._view.update(this._next!);
    });
  }

  /** Show below the view what is wrong; '' if nothing is. */
  complain(trouble: string): void {
    this._trouble.textContent = trouble;
    this._trouble.hidden = trouble === '';
  }

  dispose(): void {
    cancelAnimationFrame(this._frame);
    this._view.dispose();
    this.node.remove();
  }

  private readonly _view = new View();
  private readonly _trouble = make('p', {
    class: 'nbdist-trouble',
    role: 'alert'
  });
  private _next: IState | null = null;
  private _frame = 0;
}
