/** The ranks and the last values as tables, which screen readers can read, too. */

import { fit, make, setAttribute, setText } from '../elements/dom';
import { describeMarks } from '../chart/marks';
import { inBytes, inMilliseconds, inPercent } from '../../amounts';
import { count, short } from '../data/numbers';
import type { IPanel, IRank, IState } from '../data/state';

interface IColumn<Row> {
  title: string;
  /** The text of a cell, empty if it is not known. A column that never had a text is hidden. */
  text: (row: Row) => string;
  /** Texts are aligned left, numbers right. */
  numbers?: boolean;
  /** Whether the column is shown even while it is empty. */
  always?: boolean;
}

/** If there are more ranks, their table is folded at first. */
const UNFOLDED_RANKS = 8;

class Table<Row> {
  constructor(caption: string, columns: IColumn<Row>[]) {
    this._columns = columns;
    this._titles = columns.map(column =>
      make('th', { scope: 'col', class: this._class(column) }, column.title)
    );
    const head = make('thead', {}, make('tr', {}, ...this._titles));
    const table = make(
      'table',
      {},
      make('caption', {}, caption),
      head,
      this._body
    );
    this.node = make(
      'div',
      {
        class: 'nbdist-scroll',
        role: 'region',
        tabindex: '0',
        'aria-label': caption
      },
      table
    );
  }

  readonly node: HTMLElement;

  update(rows: Row[]): void {
    fit(this._body, rows.length, () =>
      make(
        'tr',
        {},
        ...this._columns.map((column, i) =>
          i === 0
            ? make('th', { scope: 'row', class: this._class(column) })
            : make('td', { class: this._class(column) })
        )
      )
    );
    this._columns.forEach((column, i) => {
      const texts = rows.map(row => column.text(row));
      // A column that was shown once stays: the table must not change its form while one reads it.
      this._seen[i] ||= column.always || texts.some(text => text !== '');
      this._titles[i].hidden = !this._seen[i];
      texts.forEach((text, row) => {
        const cell = this._body.childNodes[row].childNodes[i] as HTMLElement;
        cell.hidden = !this._seen[i];
        setText(cell, text);
      });
    });
  }

  private _class(column: IColumn<Row>): string {
    return column.numbers ? 'nbdist-number' : 'nbdist-text';
  }

  private readonly _columns: IColumn<Row>[];
  private readonly _titles: HTMLElement[];
  private readonly _body = make('tbody');
  private readonly _seen: boolean[] = [];
}

const percent = (value: number | null): string =>
  value === null ? '' : inPercent(value);
const size = (value: number | null): string =>
  value === null ? '' : inBytes(value);

const RANK_COLUMNS: IColumn<IRank>[] = [
  { title: 'rank', text: rank => String(rank.rank), always: true },
  { title: 'host', text: rank => rank.host },
  { title: 'device', text: rank => rank.device },
  { title: 'CPU', text: rank => percent(rank.cpu), numbers: true },
  { title: 'memory', text: rank => size(rank.memory), numbers: true },
  { title: 'GPU', text: rank => percent(rank.gpu), numbers: true },
  { title: 'GPU memory', text: rank => size(rank.gpu_memory), numbers: true },
  {
    title: 'ms/step',
    text: rank => (rank.step === null ? '' : inMilliseconds(rank.step)),
    numbers: true
  },
  { title: 'state', text: rank => rank.state, always: true }
];

/** The table of ranks. The rank that others wait for is named beside the title, also while folded. */
export class Ranks {
  constructor() {
    const summary = make('summary', {}, this._title, this._slow);
    this.node.append(summary, this._table.node);
  }

  readonly node = make('details', { class: 'nbdist-details' });

  update({ ranks, straggler }: IState): void {
    this.node.hidden = ranks.length === 0;
    if (!this._begun && ranks.length > 0) {
      this._begun = true;
      this.node.open = ranks.length <= UNFOLDED_RANKS;
    }
    setText(
      this._title,
      ranks.length === 1 ? '1 rank' : `${ranks.length} ranks`
    );
    setText(this._slow, straggler);
    this._table.update(ranks);
  }

  private _begun = false;
  private readonly _title = make('span');
  private readonly _slow = make('span', { class: 'nbdist-slow' });
  private readonly _table = new Table('Ranks', RANK_COLUMNS);
}

interface IMetric {
  name: string;
  last: string;
  least: string;
  most: string;
  points: string;
  marks: string;
}

const METRIC_COLUMNS: IColumn<IMetric>[] = [
  { title: 'metric', text: row => row.name },
  { title: 'last', text: row => row.last, numbers: true },
  { title: 'min', text: row => row.least, numbers: true },
  { title: 'max', text: row => row.most, numbers: true },
  { title: 'points', text: row => row.points, numbers: true },
  { title: 'NaN, Inf', text: row => row.marks }
];

/** The last values of all metrics. */
export class Values {
  constructor() {
    this.node.append(make('summary', {}, this._title), this._table.node);
  }

  readonly node = make('details', { class: 'nbdist-details' });

  update(panels: IPanel[]): void {
    const rows = panels.flatMap(panel =>
      panel.curves.map(curve => ({
        name: curve.name,
        last: short(curve.last),
        least: short(curve.best[0]),
        most: short(curve.best[1]),
        points: count(curve.points),
        marks: describeMarks(curve.marks)
      }))
    );
    this.node.hidden = rows.length === 0;
    setText(
      this._title,
      rows.length === 1
        ? 'Values of 1 metric'
        : `Values of ${rows.length} metrics`
    );
    setAttribute(this.node, 'data-metrics', String(rows.length));
    this._table.update(rows);
  }

  private readonly _title = make('span');
  private readonly _table = new Table('Values', METRIC_COLUMNS);
}
