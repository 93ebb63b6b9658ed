/**
 * What charts begin with, and which panels stand first.
 *
 * Where there are JupyterLab's settings, a plugin reads these from there and keeps them there; in
 * any other front end they hold for the page.
 */

import { DEFAULTS, type IOptions } from './options';

export class Preferences {
  /** What charts begin with. */
  get charts(): Readonly<IOptions> {
    return this._charts;
  }

  /** Titles of the panels that stand before all others, in their order. */
  get pinned(): readonly string[] {
    return this._pinned;
  }

  /** Keeps what was pinned; does nothing where there are no settings. */
  keep: (pinned: string[]) => void = () => undefined;

  /** Take what the settings say; values that they do not have are the defaults. */
  take(charts: Partial<IOptions>, pinned: readonly string[]): void {
    this._charts = { ...DEFAULTS, ...charts };
    this._pinned = pinned;
    this._tell();
  }

  /** Let a panel stand before the others, or no longer. */
  pin(title: string, on: boolean): void {
    const others = this._pinned.filter(each => each !== title);
    const pinned = on ? [...others, title] : others;
    this._pinned = pinned;
    this._tell();
    this.keep(pinned);
  }

  /**
   * Be told of every change.
   *
   * @returns What ends it.
   */
  follow(changed: () => void): () => void {
    this._followers.add(changed);
    return () => this._followers.delete(changed);
  }

  private _tell(): void {
    this._followers.forEach(changed => {
      changed();
    });
  }

  private _charts: IOptions = { ...DEFAULTS };
  private _pinned: readonly string[] = [];
  private readonly _followers = new Set<() => void>();
}

/** Those of this page. */
export const preferences = new Preferences();
