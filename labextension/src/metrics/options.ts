/** What a person has chosen; it outlives every update from the kernel. */
export interface IOptions {
  /** Values on a logarithmic scale; those that are not above zero are left out. */
  log: boolean;
  /** A line for each rank instead of their mean and range. */
  apart: boolean;
  /** Weight of the moving average, 0 for none. */
  smoothing: number;
}

/** A stretch of steps. */
export interface IRange {
  min: number;
  max: number;
}
