/** A value, over a graph of its last minute. */

import React from 'react';
import { useDesk } from './desk';
import { LENGTH, type Used } from './history';

const WIDTH = 60;
const HEIGHT = 16;

interface IProps {
  name: Used;
  value: number | null;
  past: (number | null)[];
}

export function Meter({ name, value, past }: IProps): React.JSX.Element | null {
  const { words, settings } = useDesk();
  if (value === null) {
    return null;
  }
  const said = words.used(name, value);
  return (
    <span
      className={`jp-NbdistMeter jp-mod-${name}`}
      title={words.usedName(name)}
    >
      {settings.showGraphs && (
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          aria-hidden="true"
        >
          <path d={area(past, name)} />
        </svg>
      )}
      <span className="jp-NbdistHidden">{words.usedName(name)} </span>
      <span className="jp-NbdistMeter-value">{said}</span>
    </span>
  );
}

/** The outline of what was used, the newest at the right end. */
function area(past: (number | null)[], name: Used): string {
  const most =
    name === 'cpu' || name === 'gpu'
      ? Math.max(100, ...past.map(value => value ?? 0))
      : Math.max(1, ...past.map(value => value ?? 0)) * 1.25;
  const step = WIDTH / (LENGTH - 1);
  const left = WIDTH - (past.length - 1) * step;
  const points = past.map((value, i) => {
    const high = HEIGHT * (1 - (value ?? 0) / most);
    return `${(left + i * step).toFixed(1)} ${high.toFixed(1)}`;
  });
  return points.length > 1
    ? `M${left.toFixed(1)} ${HEIGHT}L${points.join('L')}L${WIDTH} ${HEIGHT}Z`
    : '';
}
