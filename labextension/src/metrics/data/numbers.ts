/** Numbers as people read them. */

const COUNT = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });

/** A value with a number of significant digits, without trailing zeros. */
export function significant(value: number, digits: number): string {
  if (!Number.isFinite(value)) {
    return special(value);
  }
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) {
    return scientific(value, digits - 1);
  }
  return String(Number(value.toPrecision(digits)));
}

/** A value as exact as it was sent: a single-precision number has six or seven digits. */
export function exact(value: number): string {
  return significant(value, 6);
}

/** A value for legends and tables. */
export function short(value: number | null): string {
  return value === null ? '–' : significant(value, 4);
}

function scientific(value: number, places: number): string {
  return value.toExponential(places).replace(/\.?0*e\+?/, 'e');
}

function special(value: number): string {
  return Number.isNaN(value) ? 'NaN' : value > 0 ? 'Inf' : '−Inf';
}

/** 1234567 as 1,234,567. */
export function count(value: number): string {
  return COUNT.format(value);
}

/** The label of a tick whose neighbours are `apart` away. */
export function tick(value: number, apart: number): string {
  const size = Math.abs(value);
  if (value === 0) {
    return '0';
  }
  if (size >= 1e15 || size < 1e-3) {
    const places = Math.ceil(Math.log10(size / apart) - 1e-9);
    return scientific(value, Math.min(14, Math.max(0, places)));
  }
  for (const [unit, name] of UNITS) {
    if (size >= unit * 10 || (size >= unit && apart >= unit / 10)) {
      return fixed(value / unit, apart / unit) + name;
    }
  }
  return fixed(value, apart);
}

const UNITS: [number, string][] = [
  [1e12, 'T'],
  [1e9, 'G'],
  [1e6, 'M'],
  [1e3, 'k']
];

/** Write a number with as many decimal places as `apart` has. */
function fixed(value: number, apart: number): string {
  let places = 0;
  while (
    places < 15 &&
    Math.abs(Number(apart.toFixed(places)) - apart) > apart / 1e6
  ) {
    places++;
  }
  return String(Number(value.toFixed(places)));
}
