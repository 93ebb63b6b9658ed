/** Reads a chart by keyboard: arrows go from step to step, + and - zoom around a step. */

import type { IRange } from '../data/options';
import { before } from './lines';

/** The chart that the keys control. */
export interface IKeyed {
  /** All steps of the chart. */
  steps: () => ArrayLike<number>;
  /** The range of steps in sight; null for all. */
  range: () => IRange | null;
  /** Put the cursor at the step with this index, or nowhere. */
  point: (index: number | null) => void;
  zoom: (range: IRange | null) => void;
}

const FAR = 10;

export class Keys {
  constructor(host: HTMLElement, chart: IKeyed) {
    this._chart = chart;
    host.addEventListener('keydown', event => {
      if (
        !event.ctrlKey &&
        !event.metaKey &&
        !event.altKey &&
        this._press(event)
      ) {
        event.preventDefault();
        event.stopPropagation();
      }
    });
    host.addEventListener('blur', () => {
      this._leave();
    });
  }

  /** The step that was chosen by keyboard; null if none is. */
  step: number | null = null;

  /** Put the cursor back at the step after the chart was redrawn. */
  restore(): void {
    if (this.step !== null) {
      this._chart.point(Math.max(0, before(this._chart.steps(), this.step)));
    }
  }

  private _press(event: KeyboardEvent): boolean {
    const steps = this._chart.steps();
    if (steps.length === 0) {
      return false;
    }
    const range = this._chart.range();
    const first = range ? before(steps, range.min - 1e-9) + 1 : 0;
    const last = range ? before(steps, range.max) : steps.length - 1;
    const at = this.step === null ? last : before(steps, this.step);
    const far = event.shiftKey ? FAR : 1;
    const moves: Partial<Record<string, number>> = {
      // The first press only shows the cursor.
      ArrowLeft: this.step === null ? at : at - far,
      ArrowRight: at + far,
      PageUp: at - FAR,
      PageDown: at + FAR,
      Home: first,
      End: last
    };
    const to = moves[event.key];
    if (to !== undefined) {
      const index = Math.min(last, Math.max(first, to));
      this.step = steps[index];
      this._chart.point(index);
    } else if (event.key === '+' || event.key === '-') {
      this._zoom(steps, steps[at], event.key === '+' ? 0.5 : 2);
    } else if (event.key === 'Escape' && (this.step !== null || range)) {
      this._leave();
      this._chart.zoom(null);
    } else {
      return false;
    }
    return true;
  }

  private _zoom(
    steps: ArrayLike<number>,
    centre: number,
    factor: number
  ): void {
    const [min, max] = [steps[0], steps[steps.length - 1]];
    const shown = this._chart.range() ?? { min, max };
    const half = ((shown.max - shown.min) * factor) / 2;
    const range = {
      min: Math.max(min, centre - half),
      max: Math.min(max, centre + half)
    };
    const all = range.min <= min && range.max >= max;
    this._chart.zoom(all || range.min >= range.max ? null : range);
  }

  private _leave(): void {
    if (this.step !== null) {
      this.step = null;
      this._chart.point(null);
    }
  }

  private readonly _chart: IKeyed;
}
