/** Marks in a chart for values that are NaN or infinite. */

import type uPlot from 'uplot';
import type { Across } from '../data/options';
import type { Mark } from '../data/state';
import type { Theme } from '../elements/theme';

export const WORDS: Record<Mark[1], string> = {
  nan: 'NaN',
  inf: 'Inf',
  '-inf': '−Inf'
};

/** Draw marks, and the name of the horizontal axis, for which uPlot would need a line of its own. */
export function drawMarks(
  chart: uPlot,
  marks: Mark[],
  theme: Theme,
  across: Across
): void {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.font = theme.font.replace(/^[\d.]+/, size =>
    String(Number(size) * ratio)
  );
  ctx.textBaseline = 'top';
  ctx.textAlign = 'left';
  ctx.fillStyle = theme.of('muted');
  ctx.fillText(across, 4 * ratio, bbox.top + bbox.height + 4 * ratio);
  ctx.beginPath();
  ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = theme.of('bad');
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  let free = -Infinity;
  const seen = new Set<string>();
  for (const [step, kind] of [...marks].sort((a, b) => a[0] - b[0])) {
    const x = Math.round(chart.valToPos(step, 'x', true));
    if (seen.has(`${x} ${kind}`)) {
      continue;
    }
    seen.add(`${x} ${kind}`);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(WORDS[kind]).width;
    const left = Math.min(x + 3 * ratio, bbox.left + bbox.width - width);
    if (left >= free && x >= bbox.left) {
      ctx.fillText(WORDS[kind], left, bbox.top);
      free = left + width + 6 * ratio;
    }
  }
  ctx.restore();
}

/** The first mark in words, and the number of further marks, for tables and tooltips. */
export function describeMarks(marks: Mark[]): string {
  if (marks.length === 0) {
    return '';
  }
  const [step, kind, rank] = marks[0];
  const more = marks.length > 1 ? `, ${marks.length - 1} more` : '';
  return `${WORDS[kind]} at step ${step} on rank ${rank}${more}`;
}
