/** What the page around a view can do, where there is more than a notebook's output: JupyterLab. */

import type { IState } from './data/state';

/** Names a job for the server. */
export interface IJobName {
  folder: string;
  job: string;
}

/** A job that curves can be compared with. */
export interface IOther extends IJobName {
  name: string;
}

export interface IHost {
  /**
   * Save all values of a job as a file.
   *
   * @param name The job's, as the page has it.
   * @returns False where the server does not have them.
   */
  saveValues: (job: IJobName, name: string) => Promise<boolean>;
  /** Show a job in a tab of its own. */
  openTab: (job: IJobName) => void;
  /** The jobs that have curves. */
  others: () => IOther[];
  /**
   * Be told of a job's state, now and whenever it is another one.
   *
   * @returns What ends it.
   */
  follow: (job: IJobName, told: (state: IState) => void) => () => void;
}

/** The page; its host is null where it can do no more than show what it was sent. */
class Page {
  host: IHost | null = null;

  /**
   * Be told when there are other jobs than before.
   *
   * @returns What ends it.
   */
  follow(changed: () => void): () => void {
    this._followers.add(changed);
    return () => this._followers.delete(changed);
  }

  /** Say that there are other jobs. */
  tell(): void {
    this._followers.forEach(changed => {
      changed();
    });
  }

  private readonly _followers = new Set<() => void>();
}

export const page = new Page();
