/** The progress bars of the ranks. */

import { fit, make, setAttribute, setText } from '../elements/dom';
import { inDigits, inPercent, inRate, inTime } from '../../amounts';
import { count } from '../data/numbers';
import type { IBar, JobState } from '../data/state';

/** A list of bars. Its height does not shrink while a job runs, so the charts below stay in place. */
export class Bars {
  readonly node = make('div', { class: 'nbdist-bars' });

  update(bars: IBar[], state: JobState): void {
    fit(this.node, bars.length, () => new Bar().node);
    bars.forEach((bar, i) => {
      BARS.get(this.node.childNodes[i])!.update(bar, state);
    });
    this._most = Math.max(this._most, bars.length);
    this.node.style.setProperty('--nbdist-bars', String(this._most));
  }

  private _most = 0;
}

const BARS = new WeakMap<Node, Bar>();

class Bar {
  constructor() {
    this._fill = make('div', { class: 'nbdist-fill' });
    this._track = make(
      'div',
      { class: 'nbdist-track', role: 'progressbar' },
      this._fill
    );
    this.node.append(this._label, this._track, this._text);
    BARS.set(this.node, this);
  }

  readonly node = make('div', { class: 'nbdist-bar' });

  update(bar: IBar, state: JobState): void {
    const label = bar.label || 'progress';
    const told = describe(bar, state);
    setText(this._label, label);
    setText(this._text, told);
    this.node.style.setProperty('--nbdist-depth', String(bar.depth));
    setAttribute(this._track, 'aria-label', label);
    setAttribute(this._track, 'aria-valuetext', told);
    const known = bar.total !== null && bar.total > 0;
    this.node.classList.toggle('nbdist-endless', !known && state === 'running');
    if (known) {
      const share = Math.min(1, bar.done / bar.total!);
      this._fill.style.width = `${share * 100}%`;
      setAttribute(
        this._track,
        'aria-valuenow',
        String(Math.round(share * 100))
      );
    } else {
      this._fill.style.width = state === 'running' ? '30%' : '100%';
      this._track.removeAttribute('aria-valuenow');
    }
  }

  private readonly _label = make('span', { class: 'nbdist-label' });
  private readonly _text = make('span', { class: 'nbdist-told' });
  private readonly _track: HTMLElement;
  private readonly _fill: HTMLElement;
}

/** The progress of a bar in words. */
export function describe(bar: IBar, state: JobState): string {
  const parts = [];
  if (bar.total !== null) {
    const share =
      bar.total > 0 ? Math.floor((bar.done / bar.total) * 100) : 100;
    parts.push(inPercent(share), `${count(bar.done)} of ${count(bar.total)}`);
  } else {
    parts.push(count(bar.done));
  }
  if (bar.rate !== null) {
    parts.push(inRate(bar.rate, bar.label));
  }
  if (bar.samples !== null) {
    parts.push(`${inDigits(bar.samples)} samples/s`);
  }
  if (bar.left !== null && state === 'running' && bar.done !== bar.total) {
    parts.push(`${inTime(Math.round(bar.left))} left`);
  }
  if (bar.still !== null && state === 'running') {
    parts.push(`no step for ${inTime(bar.still)}`);
  }
  return parts.join(' · ');
}
