/**
 * How amounts are written for people: durations, sizes, rates.
 *
 * `nbdist/machine/amounts.py` does the same for what the kernel writes, and one table,
 * `tests/amounts.json`, tests both.
 */

const COUNT = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Units: the name, how many make up a second, and how many make up the next larger unit. */
const SHORT_TIMES: [string, number, number][] = [
  ['µs', 1e6, 1000],
  ['ms', 1e3, 1000],
  ['s', 1, MINUTE]
];
const SIZES = ['B', 'kB', 'MB', 'GB', 'TB'];

/** Durations of fewer units than this are written with tenths; with more, tenths would be noise. */
const FEW_UNITS = 10;
/** The same for sizes: 61.7 GB may be too much for a device that has room for 61.2 GB. */
const FEW_BYTES = 100;

/** Labels that name one iteration of the loop. In a loop "epoch 3" an iteration is a batch. */
const STEP = /^(epoch|step|batch)(?:e?s)?$/i;
const MANY: Record<string, string> = {
  epoch: 'epochs',
  step: 'steps',
  batch: 'batches',
  it: 'it'
};

/** A duration: 12 ms, 3.2 s, 12 min 5 s, 2 h 5 min, 1 d 3 h. */
export function inTime(seconds: number): string {
  if (seconds <= 0) {
    return '0 s';
  }
  for (const [unit, factor, most] of SHORT_TIMES) {
    const number = shortened(seconds * factor, FEW_UNITS);
    if (number < most) {
      return `${number} ${unit}`;
    }
  }
  let whole = rounded(seconds);
  if (whole < HOUR) {
    return two(whole, MINUTE, 'min', 's');
  }
  whole = rounded(seconds / MINUTE) * MINUTE;
  return whole < DAY
    ? two(whole / MINUTE, HOUR / MINUTE, 'h', 'min')
    : two(rounded(seconds / HOUR), DAY / HOUR, 'd', 'h');
}

/** A number of bytes: 12.3 MB; a MB is 10⁶ bytes everywhere. */
export function inBytes(size: number): string {
  let number = size;
  let unit = 0;
  const shown = () => shortened(number, unit ? FEW_BYTES : 0);
  while (shown() >= 1000 && unit < SIZES.length - 1) {
    number /= 1000;
    unit++;
  }
  return `${shown()} ${SIZES[unit]}`;
}

/** A number with three digits, or with all digits before the point: 5.28, 12,345. */
export function inDigits(value: number): string {
  return Math.abs(value) >= 100
    ? COUNT.format(rounded(value))
    : String(Number(value.toPrecision(3)));
}

/** The time of a step, for a column of milliseconds. */
export function inMilliseconds(seconds: number): string {
  return inDigits(1000 * seconds);
}

/**
 * The speed of a loop: 12.5 it/s, or 2.4 s/it if it is slower than one a second. If the label is
 * epoch, step or batch, that is the unit.
 */
export function inRate(rate: number, label = ''): string {
  const unit = STEP.exec(label.trim())?.[1].toLowerCase() ?? 'it';
  return rate >= 1
    ? `${inDigits(rate)} ${MANY[unit]}/s`
    : `${inTime(1 / rate)}/${unit}`;
}

/** A percentage: 97 %. */
export function inPercent(share: number): string {
  return `${rounded(share)} %`;
}

/** A number of parts, written as whole units of `most` parts and the remaining parts. */
function two(number: number, most: number, unit: string, part: string): string {
  const units = Math.floor(number / most);
  const parts = number % most;
  return parts ? `${units} ${unit} ${parts} ${part}` : `${units} ${unit}`;
}

/** Round a number: to tenths if it is below `few`, else to a whole number. */
function shortened(number: number, few: number): number {
  const tenths = rounded(10 * number) / 10;
  return tenths < few ? tenths : rounded(number);
}

/** Round a half up, as the kernel does: neither Python's `round` nor `toFixed` does so always. */
function rounded(number: number): number {
  return Math.floor(number + 0.5);
}
