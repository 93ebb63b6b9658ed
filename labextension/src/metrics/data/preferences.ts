/**
 * The first options of charts, and the panels that are pinned.
 *
 * In JupyterLab a plugin reads these from the settings, and writes pins to the settings. In other
 * front ends they last as long as the page.
 */

import { DEFAULTS, type IOptions } from './options';

export class Preferences {
  /** The first options of charts. */
  get charts(): Readonly<IOptions> {
    return this._charts;
  }

  /** The titles of the pinned panels, in their order. */
  get pinned(): readonly string[] {
    return this._pinned;
  }

  /** Writes the pinned titles to the settings; does nothing where there are no settings. */
  keep: (pinned: string[]) => void = () => undefined;

  /** Take the values of the settings, and defaults for what is missing. */
  take(charts: Partial<IOptions>, pinned: readonly string[]): void {
    this._charts = { ...DEFAULTS, ...charts };
    this._pinned = pinned;
    this._tell();
  }

  /** Pin a panel, or unpin it. */
  pin(title: string, on: boolean): void {
    const others = this._pinned.filter(each => each !== title);
    const pinned = on ? [...others, title] : others;
    this._pinned = pinned;
    this._tell();
    this.keep(pinned);
  }

  /**
   * Call `changed` at every change.
   *
   * @returns A function that ends this.
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

/** The preferences of this page. */
export const preferences = new Preferences();
