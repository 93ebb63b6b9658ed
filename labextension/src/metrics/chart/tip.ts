/** The tooltip beside the cursor of a chart. */

import { fit, make, setText } from '../elements/dom';
import { swatch } from './legend';
import type { ILine } from './lines';
import { WORDS } from './marks';
import { count } from '../data/numbers';
import type { Across } from '../data/options';
import { placeName } from './axisPlaces';
import type { IReading } from './readings';
import type { IPanel } from '../data/state';

/** Pixels between the cursor and the tooltip. */
const GAP = 14;
/** How many lines fit beside a chart. */
const LINES = 8;
/** If there are more marks, the rest is only counted. */
const MOST_MARKS = 2;

export class Tip {
  constructor() {
    this.node.append(this._step, this._rows, this._more, this._marks);
    this.hide();
  }

  readonly node = make('div', { class: 'nbdist-tip', 'aria-hidden': 'true' });

  hide(): void {
    this.node.hidden = true;
  }

  /** Show the values that were read at a step. */
  show(
    panel: IPanel,
    across: Across,
    step: number,
    found: IReading[],
    lines: ILine[],
    focus: ILine | null
  ): void {
    this.node.hidden = false;
    const stride = Math.max(
      ...found.map(each => panel.curves[each.curve].stride),
      1
    );
    const first = step - stride + 1;
    setText(
      this._step,
      stride > 1
        ? `steps ${count(Math.max(0, first))} to ${count(step)}`
        : placeName(across, step)
    );
    const marks = marksAt(panel, across, step, stride);
    const shown = found.slice(0, LINES - marks.length);
    fit(this._rows, shown.length, () =>
      make(
        'tr',
        {},
        make('td'),
        make('td'),
        make('td', { class: 'nbdist-number' }),
        make('td')
      )
    );
    shown.forEach((reading, i) => {
      const row = this._rows.childNodes[i] as HTMLElement;
      const [line, label, value, note] =
        row.childNodes as unknown as HTMLElement[];
      const drawn = lines.find(
        each => each.curve === reading.curve && each.rank === reading.rank
      );
      line.replaceChildren(swatch(drawn?.colour ?? 0, drawn?.dash ?? 0));
      setText(label, reading.label);
      setText(value, reading.value);
      setText(note, reading.note);
      row.classList.toggle(
        'nbdist-near',
        focus?.rank === reading.rank &&
          focus.curve === reading.curve &&
          focus.rank !== null
      );
    });
    const more = found.length - shown.length;
    setText(this._more, more > 0 ? `${more} more` : '');
    setText(this._marks, marks.join('\n'));
  }

  /** Place the tooltip beside the cursor, on the side that has room, and over no other chart. */
  place(left: number): void {
    const most = this.node.parentElement!.clientWidth - this.node.offsetWidth;
    const place =
      left + GAP <= most ? left + GAP : left - GAP - this.node.offsetWidth;
    this.node.style.left = `${Math.max(0, Math.min(most, place))}px`;
  }

  private readonly _step = make('div', { class: 'nbdist-step' });
  private readonly _rows = make('table');
  private readonly _more = make('div', { class: 'nbdist-step' });
  private readonly _marks = make('div', { class: 'nbdist-marks' });
}

/** The values at a step that are not finite, in words. */
function marksAt(
  panel: IPanel,
  across: Across,
  step: number,
  stride: number
): string[] {
  const marks = panel.curves.flatMap(curve =>
    curve.marks
      .filter(([at]) =>
        across === 'step' ? at > step - stride && at <= step : at === step
      )
      .map(
        ([at, kind, rank]) =>
          `${curve.label} ${WORDS[kind]} at ${placeName(across, at)} on rank ${rank}`
      )
  );
  const more = marks.length - MOST_MARKS;
  return more > 0
    ? [...marks.slice(0, MOST_MARKS), `${more} more NaN, Inf`]
    : marks;
}
