/** What stands beside the cursor of a chart. */

import { fit, make, setText } from './dom';
import { swatch } from './legend';
import type { ILine } from './lines';
import { WORDS } from './marks';
import { count } from './numbers';
import type { IReading } from './readings';
import type { IPanel } from './state';

/** Between the cursor and what stands beside it. */
const GAP = 14;

export class Tip {
  constructor() {
    this.node.append(this._step, this._rows, this._marks);
    this.hide();
  }

  readonly node = make('div', { class: 'nbdist-tip', 'aria-hidden': 'true' });

  hide(): void {
    this.node.hidden = true;
  }

  /** Fill it with what was read at a step. */
  show(
    panel: IPanel,
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
        : `step ${count(step)}`
    );
    fit(this._rows, found.length, () =>
      make(
        'tr',
        {},
        make('td'),
        make('td'),
        make('td', { class: 'nbdist-number' }),
        make('td')
      )
    );
    found.forEach((reading, i) => {
      const row = this._rows.childNodes[i] as HTMLElement;
      const [line, label, value, note] =
        row.childNodes as unknown as HTMLElement[];
      const drawn = lines.find(
        each => each.curve === reading.curve && each.rank === reading.rank
      );
      line.replaceChildren(swatch(drawn?.colour ?? 0, drawn?.dashed ?? false));
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
    const marks = panel.curves.flatMap(curve =>
      curve.marks
        .filter(([at]) => at > step - stride && at <= step)
        .map(
          ([at, kind, rank]) =>
            `${curve.label} ${WORDS[kind]} at step ${at} on rank ${rank}`
        )
    );
    setText(this._marks, marks.join('\n'));
  }

  /** Stand beside the cursor, on the side that has room, and within the widget. */
  place(left: number): void {
    const frame = this.node.parentElement!.getBoundingClientRect();
    const around = this.node
      .closest('.nbdist-metrics')!
      .getBoundingClientRect();
    const width = this.node.offsetWidth;
    const least = around.left - frame.left;
    const most = around.right - frame.left - width;
    const place = left + GAP <= most ? left + GAP : left - GAP - width;
    this.node.style.left = `${Math.max(least, Math.min(most, place))}px`;
  }

  private readonly _step = make('div', { class: 'nbdist-step' });
  private readonly _rows = make('table');
  private readonly _marks = make('div', { class: 'nbdist-marks' });
}
