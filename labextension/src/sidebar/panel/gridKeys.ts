/** How keys move through a grid. No DOM. */

/** The place that a key moves to in a grid of `count` cells; null if it moves nowhere. */
export function moved(
  key: string,
  place: number | null,
  columns: number,
  count: number
): number | null {
  const steps: Record<string, number> = {
    ArrowRight: 1,
    ArrowLeft: -1,
    ArrowDown: columns,
    ArrowUp: -columns
  };
  if (key === 'Home' || key === 'End') {
    return key === 'Home' ? 0 : count - 1;
  }
  if (place === null) {
    return key in steps || key === 'Enter' || key === ' ' ? 0 : null;
  }
  const next = place + (steps[key] ?? 0);
  return key in steps && next >= 0 && next < count ? next : null;
}
