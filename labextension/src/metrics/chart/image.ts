/** A panel as a picture: title, legend, axes and curves, on white or on the page's background. */

import { make } from '../elements/dom';
import { DASHES, type IDrawing, type ILine } from './lines';
import type { IOptions, IRange } from '../data/options';
import { Plot } from './plot';
import type { IPanel } from '../data/state';
import { Theme } from '../elements/theme';

const WIDE = 720;
const HIGH = 340;
const MARGIN = 12;
const LINE = 20;
const SWATCH = 18;

export interface IPictured {
  title: string;
  panel: IPanel;
  drawing: IDrawing;
  options: Readonly<IOptions>;
  range: IRange | null;
}

/** Draw a panel once more, out of sight; `white` draws it as on a light page, to be printed. */
export async function imageOf(
  pictured: IPictured,
  white: boolean
): Promise<Blob> {
  const { drawing, options, range, panel } = pictured;
  const plotted = make('div', { style: `width:${WIDE}px;height:${HIGH}px` });
  const host = make(
    'div',
    {
      class: `nbdist-metrics nbdist-aside${white ? ' nbdist-white' : ''}`,
      'aria-hidden': 'true'
    },
    plotted
  );
  document.body.append(host);
  const theme = new Theme(host, () => undefined);
  const nothing = (): void => undefined;
  const plot = new Plot(plotted, theme, 'nbdist-aside', {
    hover: nothing,
    focus: nothing,
    zoom: nothing
  });
  try {
    const drawn = new Set(drawing.lines.map(line => line.curve));
    const marks = panel.curves
      .filter((_, i) => drawn.has(i))
      .flatMap(curve => curve.marks);
    plot.show(drawing, marks, options, range);
    await new Promise(resolve => setTimeout(resolve)); // uPlot draws when the present task has ended
    const chart = plotted.querySelector('canvas')!;
    return await blobOf(composed(pictured, chart, theme, host));
  } finally {
    plot.dispose();
    theme.dispose();
    host.remove();
  }
}

/** Put the title and the legend above a chart. */
function composed(
  { title, panel, drawing, options }: IPictured,
  chart: HTMLCanvasElement,
  theme: Theme,
  host: HTMLElement
): HTMLCanvasElement {
  const ratio = chart.width / WIDE;
  const canvas = make('canvas');
  const ctx = canvas.getContext('2d')!;
  const font = getComputedStyle(host).fontFamily;
  ctx.font = `12px ${font}`;
  const entries = drawing.lines
    .filter(({ role }) => role === 'mean' || role === 'rank')
    .map(line => ({ line, text: nameOf(line, panel) }));
  const rows = inRows(
    entries.map(({ text }) => SWATCH + ctx.measureText(text).width + MARGIN)
  );
  const top = MARGIN + LINE * (1 + rows.length);
  canvas.width = chart.width + 2 * MARGIN * ratio;
  canvas.height = chart.height + (top + MARGIN) * ratio;
  ctx.fillStyle = theme.of('surface');
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(chart, MARGIN * ratio, top * ratio);
  ctx.scale(ratio, ratio);
  ctx.textBaseline = 'middle';
  ctx.fillStyle = theme.of('text');
  ctx.font = `600 14px ${font}`;
  const smoothed = options.smoothing ? ` (smoothing ${options.smoothing})` : '';
  ctx.fillText(title + smoothed, MARGIN, MARGIN + LINE / 2);
  ctx.font = `12px ${font}`;
  rows.forEach((row, i) => {
    row.forEach(({ entry, left }) => {
      const { line, text } = entries[entry];
      const y = MARGIN + LINE * (i + 1.5);
      ctx.strokeStyle = theme.of(`curve-${line.colour}`);
      ctx.lineWidth = 2;
      ctx.setLineDash(DASHES[line.dash]);
      ctx.beginPath();
      ctx.moveTo(MARGIN + left, y);
      ctx.lineTo(MARGIN + left + SWATCH - 4, y);
      ctx.stroke();
      ctx.fillText(text, MARGIN + left + SWATCH, y);
    });
  });
  return canvas;
}

function nameOf({ curve, rank }: ILine, { curves }: IPanel): string {
  const { label } = curves[curve];
  if (rank === null) {
    return label;
  }
  return curves.length === 1 ? `rank ${rank}` : `${label}, rank ${rank}`;
}

/** Lay out the entries of a legend in rows, with as many entries in a row as fit. */
function inRows(widths: number[]): { entry: number; left: number }[][] {
  const rows: { entry: number; left: number }[][] = [];
  let left = Infinity;
  widths.forEach((width, entry) => {
    if (left + width > WIDE) {
      rows.push([]);
      left = 0;
    }
    rows[rows.length - 1].push({ entry, left });
    left += width;
  });
  return rows;
}

function blobOf(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((resolve, reject) => {
    canvas.toBlob(blob => {
      if (blob) {
        resolve(blob);
      } else {
        reject(new Error('The browser could not make a picture of the chart.'));
      }
    }, 'image/png');
  });
}
