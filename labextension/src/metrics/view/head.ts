/** The first line of a view: the job's state, title and time. */

import { make, setText } from '../elements/dom';
import { inTime } from '../../amounts';
import type { IState, JobState } from '../data/state';

const SHAPES: Record<JobState, string> = {
  starting: 'M4 7h8v2H4z',
  queued: 'M4 7h8v2H4z',
  running: 'M5 3l8 5-8 5z',
  done: 'M6.5 12.2 2.8 8.5l1.4-1.4 2.3 2.3 5.3-5.3 1.4 1.4z',
  failed:
    'M12.6 4.8 9.4 8l3.2 3.2-1.4 1.4L8 9.4l-3.2 3.2-1.4-1.4L6.6 8 3.4 4.8l1.4-1.4L8 6.6l3.2-3.2z',
  interrupted: 'M4 4h8v8H4z',
  'timed out': 'M4 2h8v3L9.5 8 12 11v3H4v-3l2.5-3L4 5z',
  lost: 'M12.6 4.8 9.4 8l3.2 3.2-1.4 1.4L8 9.4l-3.2 3.2-1.4-1.4L6.6 8 3.4 4.8l1.4-1.4L8 6.6l3.2-3.2z',
  unknown: 'M4 7h8v2H4z'
};
const WORDS: Partial<Record<JobState, string>> = {
  unknown: 'last known state'
};
const SVG = 'http://www.w3.org/2000/svg';

export class Head {
  constructor() {
    const icon = document.createElementNS(SVG, 'svg');
    icon.setAttribute('viewBox', '0 0 16 16');
    icon.setAttribute('aria-hidden', 'true');
    icon.append(this._shape);
    this._badge.append(icon, this._word);
    this.node.append(this._badge, this._title, this._clock);
  }

  readonly node = make('div', { class: 'nbdist-head' });

  /** Screen readers announce this text when it changes: the state, without the time. */
  readonly live = make('div', {
    class: 'nbdist-unseen',
    role: 'status',
    'aria-live': 'polite'
  });

  update({ state, title, seconds }: IState): void {
    if (state !== this._state) {
      this._state = state;
      this._shape.setAttribute('d', SHAPES[state]);
      this._badge.className = `nbdist-badge nbdist-is-${state.replace(' ', '-')}`;
      setText(this._word, WORDS[state] ?? state);
      setText(this.live, `${title}: ${WORDS[state] ?? state}`);
    }
    setText(this._title, title);
    setText(this._clock, inTime(Math.floor(seconds)));
  }

  private readonly _shape = document.createElementNS(SVG, 'path');
  private readonly _word = make('span');
  private readonly _badge = make('span');
  private readonly _title = make('span', { class: 'nbdist-job' });
  private readonly _clock = make('span', { class: 'nbdist-clock' });
  private _state = '';
}
