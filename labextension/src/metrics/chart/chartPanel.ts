/** One panel: its title, a legend that hides and shows curves, the chart, the tooltip. */

import { make, setAttribute, setText } from '../elements/dom';
import { fileName, saveFile } from '../elements/files';
import { saveIcon } from './chartIcons';
import { imageOf } from './image';
import { Keys } from './keys';
import { Legend } from './legend';
import { readings } from './readings';
import { draw, type IDrawing, type ILine } from './lines';
import { item, Menu } from '../elements/menu';
import type { IOptions, IRange } from '../data/options';
import { Plot } from './plot';
import { Pin } from './pin';
import { placed, placeName, type IOrigin } from './axisPlaces';
import type { ICurve, IPanel } from '../data/state';
import type { Theme } from '../elements/theme';
import { Tip } from './tip';

/** What all panels of a view share. */
export interface IShared {
  theme: Theme;
  options: IOptions;
  /** Charts with the same key show the cursor at the same step. */
  together: string;
  /** The part of the horizontal axis that all panels show; null for the whole axis. */
  readonly range: IRange | null;
  /** Let all panels show this part. */
  zoom: (range: IRange | null) => void;
  /** What is needed to place the values of a curve. */
  origin: (curve: ICurve) => IOrigin;
  /** Pin a panel, or unpin it; null where panels cannot be pinned. */
  pin: ((title: string, on: boolean) => void) | null;
}

/** A panel of curves. Which curves are hidden is the panel's own state, and outlives every update. */
export class Panel {
  constructor(title: string, shared: IShared) {
    this._shared = shared;
    this._reset.type = 'button';
    this._reset.hidden = true;
    this._reset.addEventListener('click', () => {
      this._host.focus();
      shared.zoom(null);
    });
    this._legend = new Legend(this._hidden, () => {
      this.redraw();
    });
    const caption = make(
      'figcaption',
      {},
      make('span', { class: 'nbdist-title' }, title)
    );
    this._title = title;
    this._save = new Menu(saveIcon(), `Save ${title}`, () => [
      item('PNG on white', () => {
        void this._saveImage(true);
      }),
      item('PNG as shown', () => {
        void this._saveImage(false);
      })
    ]);
    this._pin = new Pin(title, on => {
      shared.pin?.(title, on);
    });
    this._pin.node.hidden = !shared.pin;
    caption.append(
      this._legend.node,
      make('span', { class: 'nbdist-tools' }, this._save.node, this._pin.node)
    );
    const frame = make('div', { class: 'nbdist-frame' });
    frame.append(this._host, this._tip.node, this._empty, this._reset);
    this.node.append(caption, frame);
    this._plot = new Plot(this._host, shared.theme, shared.together, {
      hover: index => {
        this._hover(index);
      },
      focus: line => {
        this._focus = line;
      },
      zoom: shared.zoom
    });
    this._keys = new Keys(this._host, {
      steps: () => this._drawing?.data[0] ?? [],
      range: () => shared.range,
      point: index => {
        this._plot.point(index);
      },
      zoom: shared.zoom
    });
    this._watch = new IntersectionObserver(entries => {
      this._inSight = entries[entries.length - 1].isIntersecting;
      if (this._inSight && this._stale) {
        this.redraw();
      }
    });
    this._watch.observe(this.node);
  }

  readonly node = make('figure', { class: 'nbdist-panel' });

  /** Take new curves; draw them if they have changed and the panel is in sight. */
  update(panel: IPanel): void {
    const news = panel.curves
      .map(({ name, points, run }) => `${name} ${points} ${run ?? 0}`)
      .join();
    this._panel = panel;
    this._legend.update(panel, this._shared.options);
    if (news !== this._news) {
      this._news = news;
      this.redraw();
    }
  }

  /** Whether the panel is pinned. */
  set pinned(pinned: boolean) {
    this._pin.on = pinned;
  }

  /** Draw with the present options. */
  redraw(): void {
    this._stale = true;
    const { x } = this._shared.options;
    setAttribute(this._host, 'aria-label', `${this._title}: values by ${x}`);
    if (!this._inSight || !this._panel) {
      return;
    }
    this._stale = false;
    const { options, range } = this._shared;
    this._legend.update(this._panel, options);
    this._placed = placed(this._panel, options.x, this._shared.origin);
    this._drawing = draw(this._placed, options, this._hidden);
    const shown = this._placed.curves.filter(
      curve => !this._hidden.has(curve.name)
    );
    const marks = shown.flatMap(curve => curve.marks);
    this._plot.show(this._drawing, marks, options, range);
    this._reset.hidden = range === null;
    setText(this._empty, this._whyEmpty());
    this._describe();
    this._keys.restore();
    this._hover(this._plot.index);
  }

  /** Draw in the present colours. */
  recolour(): void {
    this._plot.recolour();
  }

  dispose(): void {
    this._watch.disconnect();
    this._plot.dispose();
    this.node.remove();
  }

  private _whyEmpty(): string {
    const { data, lines } = this._drawing!;
    const some = data
      .slice(1)
      .some(column =>
        Array.prototype.some.call(column, value => typeof value === 'number')
      );
    if (some) {
      return '';
    }
    if (lines.length === 0) {
      return 'All curves are hidden';
    }
    return this._shared.options.log
      ? 'No value is above 0'
      : 'No finite values yet';
  }

  private async _saveImage(white: boolean): Promise<void> {
    this._save.close();
    if (!this._drawing || !this._placed) {
      return; // never drawn, as it was never in sight
    }
    const { options, range } = this._shared;
    const { curves } = this._placed;
    const title = curves.length === 1 ? curves[0].name : this._title;
    const image = await imageOf(
      {
        title,
        panel: this._placed,
        drawing: this._drawing,
        options,
        range
      },
      white
    );
    saveFile(image, `${fileName(title)}.png`);
  }

  private _hover(index: number | null): void {
    const step = index === null ? undefined : this._drawing?.data[0][index];
    if (
      index === null ||
      step === undefined ||
      (this._keys.step === null && !this._plot.hovered)
    ) {
      this._tip.hide();
      return;
    }
    const { x } = this._shared.options;
    const found = readings(
      this._placed!,
      this._drawing!,
      this._shared.options,
      this._hidden,
      step,
      this._focus?.rank ?? null
    );
    this._tip.show(
      this._placed!,
      x,
      step,
      found,
      this._drawing!.lines,
      this._focus
    );
    this._tip.place(this._plot.left(index));
    if (this._keys.step !== null) {
      const told = found.map(each => `${each.label} ${each.value}`).join(', ');
      setAttribute(this._host, 'aria-valuenow', String(step));
      setAttribute(
        this._host,
        'aria-valuetext',
        `${placeName(x, step)}: ${told}`
      );
    }
  }

  /** Set what a screen reader says of the chart before a step is chosen. */
  private _describe(): void {
    const { x } = this._shared.options;
    const steps = this._drawing!.data[0];
    const last = steps[steps.length - 1] ?? 0;
    setAttribute(this._host, 'aria-valuemin', String(steps[0] ?? 0));
    setAttribute(this._host, 'aria-valuemax', String(last));
    if (this._keys.step === null) {
      setAttribute(this._host, 'aria-valuenow', String(last));
      setAttribute(this._host, 'aria-valuetext', `up to ${placeName(x, last)}`);
    }
  }

  private readonly _shared: IShared;
  private readonly _hidden = new Set<string>();
  private readonly _legend: Legend;
  private readonly _tip = new Tip();
  private readonly _plot: Plot;
  private readonly _keys: Keys;
  private readonly _watch: IntersectionObserver;
  private readonly _empty = make('div', { class: 'nbdist-empty' });
  private readonly _reset = make(
    'button',
    { class: 'nbdist-button nbdist-reset' },
    'Reset zoom'
  );
  private readonly _host = make('div', {
    class: 'nbdist-plot',
    role: 'slider',
    tabindex: '0',
    'aria-orientation': 'horizontal',
    'aria-valuenow': '0',
    'aria-valuetext': 'not drawn yet'
  });
  private readonly _title: string;
  private readonly _pin: Pin;
  private readonly _save: Menu;
  private _panel: IPanel | null = null;
  /** The same panel, with the values at their places. */
  private _placed: IPanel | null = null;
  private _drawing: IDrawing | null = null;
  private _focus: ILine | null = null;
  private _news = '';
  private _stale = true;
  private _inSight = false;
}
