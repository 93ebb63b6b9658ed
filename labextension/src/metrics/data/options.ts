/** The options of charts, which the user chooses; new states of a job do not change them. */

/** What the horizontal axis shows. */
export type Across = 'step' | 'time' | 'epoch';

export interface IOptions {
  x: Across;
  /** Whether the scale is logarithmic; values that are not above zero are then left out. */
  log: boolean;
  /** Whether each rank has a line, instead of the mean and range of all ranks. */
  perRank: boolean;
  /** The weight of the moving average; 0 for none. */
  smoothing: number;
  /** Whether the axis of the values begins at zero; without effect on a logarithmic one. */
  fromZero: boolean;
}

export const DEFAULTS: Readonly<IOptions> = {
  x: 'step',
  log: false,
  perRank: false,
  smoothing: 0,
  fromZero: false
};

/** A part of the horizontal axis. */
export interface IRange {
  min: number;
  max: number;
}
