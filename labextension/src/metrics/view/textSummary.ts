/** A job's metrics as text, for front ends without nbdist's extension. */

import { inTime } from '../../amounts';
import type { IState } from '../data/state';

/** The significant digits of a value. */
const DIGITS = 4;

type Row = [
  name: string,
  last: string,
  least: string,
  most: string,
  points: string
];

/** Return a state as plain text. */
export function inText(state: IState): string {
  const lines = rows(state).map(
    ([name, last, least, most, points]) =>
      `${name}: ${last} (min ${least}, max ${most}, ${points} ${points === '1' ? 'point' : 'points'})`
  );
  return [headline(state), ...lines, state.note].filter(Boolean).join('\n');
}

/** Return a state as HTML without scripts and style sheets. */
export function inHtml(state: IState): string {
  const cells = (tag: string, row: readonly string[]): string =>
    `<tr>${row.map(cell => `<${tag}>${escape(cell)}</${tag}>`).join('')}</tr>`;
  const note = state.note ? `<br>${escape(state.note)}` : '';
  const titles = ['metric', 'last', 'min', 'max', 'points'];
  return (
    `<div><b>${escape(headline(state))}</b>${note}</div><table>` +
    cells('th', titles) +
    `${rows(state)
      .map(row => cells('td', row))
      .join('')}</table>`
  );
}

function headline(state: IState): string {
  return `${state.title}: ${state.state} after ${inTime(state.seconds)}`;
}

function rows(state: IState): Row[] {
  return state.panels.flatMap(panel =>
    panel.curves.map(({ name, last, best, points }): Row => [
      name,
      number(last),
      number(best[0]),
      number(best[1]),
      points.toLocaleString('en')
    ])
  );
}

function number(value: number | null): string {
  return value === null ? 'n/a' : String(Number(value.toPrecision(DIGITS)));
}

function escape(text: string): string {
  const signs: Record<string, string> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;'
  };
  return text.replace(/[&<>"]/g, sign => signs[sign]);
}
