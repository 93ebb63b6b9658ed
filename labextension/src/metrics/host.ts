/** What the page around a view can do for it. Only JupyterLab and Notebook 7 provide this. */

import type { IState } from './data/state';

/** The names by which the server finds a job. */
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
   * @param name The name of the job on the page.
   * @returns False if the server does not have the values.
   */
  saveValues: (job: IJobName, name: string) => Promise<boolean>;
  /** Show a job in a tab of its own. */
  openTab: (job: IJobName) => void;
  /** All jobs that have curves. */
  others: () => IOther[];
  /**
   * Call `told` with a job's state, now and at every change.
   *
   * @returns A function that ends this.
   */
  follow: (job: IJobName, told: (state: IState) => void) => () => void;
}

/** The page; its host is null in front ends that only show a state. */
class Page {
  host: IHost | null = null;

  /**
   * Call `changed` when the list of jobs has changed.
   *
   * @returns A function that ends this.
   */
  follow(changed: () => void): () => void {
    this._followers.add(changed);
    return () => this._followers.delete(changed);
  }

  /** Report that the list of jobs has changed. */
  tell(): void {
    this._followers.forEach(changed => {
      changed();
    });
  }

  private readonly _followers = new Set<() => void>();
}

export const page = new Page();
