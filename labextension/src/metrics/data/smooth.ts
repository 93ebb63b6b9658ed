/** Smooths the values of a curve. */

/** A value of a curve: null is a gap, undefined a step that only other curves have. */
export type Value = number | null | undefined;

/**
 * The exponential moving average of a curve, as TensorBoard computes it: the first values are not
 * biased towards zero, and gaps stay gaps.
 *
 * @param weight The weight of the earlier values, from 0 (the curve itself) to below 1.
 */
export function smooth(values: readonly Value[], weight: number): Value[] {
  let sum = 0;
  let seen = 1;
  return values.map(value => {
    if (value === null || value === undefined) {
      return value;
    }
    sum = sum * weight + (1 - weight) * value;
    seen *= weight;
    return sum / (1 - seen);
  });
}
