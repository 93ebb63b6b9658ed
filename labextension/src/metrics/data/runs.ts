/** Several runs in one view: the view's own job, and other jobs laid over it. */

import { page, type IJobName, type IOther } from '../host';
import type { IPanel, IState } from './state';

/** A run with its name. */
export interface IRun {
  name: string;
  state: IState;
}

/** Put the curves of all runs into one panel for each title, with the name of the run in the label. */
export function laidOver(runs: readonly IRun[]): IPanel[] {
  if (runs.length === 1) {
    return runs[0].state.panels;
  }
  const panels = new Map<string, IPanel>();
  runs.forEach(({ name, state }, run) => {
    for (const { title, curves } of state.panels) {
      const panel = panels.get(title) ?? { title, curves: [] };
      panels.set(title, panel);
      panel.curves.push(
        ...curves.map(curve => ({
          ...curve,
          name: run === 0 ? curve.name : `${name}: ${curve.name}`,
          label: curve.label === title ? name : `${curve.label}, ${name}`,
          run
        }))
      );
    }
  });
  return [...panels.values()];
}

/** The other runs that the user has chosen; a run is followed as long as it is chosen. */
export class Runs {
  /**
   * @param changed Called when other runs are chosen, or when one of them has changed.
   */
  constructor(private readonly _changed: () => void) {}

  /** All runs with a state, the view's own first. */
  all(own: IState): IRun[] {
    const others = [...this._others.values()].flatMap(({ job, state }) =>
      state ? [{ name: job.name, state }] : []
    );
    return [{ name: nameOf(own), state: own }, ...others];
  }

  /** The names of runs whose state has not come yet. */
  get awaited(): string[] {
    return [...this._others.values()].flatMap(({ job, state }) =>
      state ? [] : [job.name]
    );
  }

  /** All chosen runs, including those that the server does not know any more. */
  get chosen(): IOther[] {
    return [...this._others.values()].map(({ job }) => job);
  }

  has(job: IJobName): boolean {
    return this._others.has(keyOf(job));
  }

  /** Lay a run over the view's own, or remove it. */
  choose(job: IOther, on: boolean): void {
    const key = keyOf(job);
    this._others.get(key)?.end();
    this._others.delete(key);
    if (on) {
      const other: IFollowed = {
        job,
        state: null,
        end: () => undefined
      };
      this._others.set(key, other);
      other.end =
        page.host?.follow(job, state => {
          other.state = state;
          this._changed();
        }) ?? other.end;
    }
    this._changed();
  }

  dispose(): void {
    this._others.forEach(({ end }) => {
      end();
    });
    this._others.clear();
  }

  private readonly _others = new Map<string, IFollowed>();
}

interface IFollowed {
  job: IOther;
  state: IState | null;
  end: () => void;
}

function keyOf({ folder, job }: IJobName): string {
  return `${folder}/${job}`;
}

/** The name of a job, as in lists of jobs. */
function nameOf(own: IState): string {
  const known = page.host?.others().find(job => keyOf(job) === keyOf(own));
  return known?.name ?? `Job ${own.job}`;
}
