/** The options of the charts that a person has chosen; updates from the kernel keep them. */

/** What the horizontal axis shows. */
export type Across = 'step' | 'time' | 'epoch';

export interface IOptions {
  x: Across;
  /** Values on a logarithmic scale; those that are not above zero are left out. */
  log: boolean;
  /** A line for each rank instead of their mean and range. */
  perRank: boolean;
  /** Weight of the moving average, 0 for none. */
  smoothing: number;
  /** The values' axis begins at zero; a logarithmic one has none. */
  fromZero: boolean;
}

export const DEFAULTS: Readonly<IOptions> = {
  x: 'step',
  log: false,
  perRank: false,
  smoothing: 0,
  fromZero: false
};

/** A stretch of the horizontal axis. */
export interface IRange {
  min: number;
  max: number;
}
