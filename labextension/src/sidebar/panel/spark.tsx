/** What a rank uses: values over small graphs, and the last minute with names, units and ranges. */

import React from 'react';
import { useDesk } from '../acting/panelContext';
import { area, HEIGHT, WIDTH } from './graph';
import { USED, type Past, type Used } from '../server/history';

interface IProps {
  name: Used;
  value: number | null;
  past: (number | null)[];
}

/** A value with its name, over a graph of its last minute. */
export function Meter({ name, value, past }: IProps): React.JSX.Element | null {
  const { words } = useDesk();
  if (value === null) {
    return null;
  }
  return (
    <span
      className={`jp-NbdistMeter jp-mod-${name}`}
      title={words.history(name, past)}
    >
      <Graph name={name} past={past} />
      <span>{words.usedName(name)} </span>
      <span className="jp-NbdistMeter-value">{words.used(name, value)}</span>
    </span>
  );
}

/** The last minute of a rank: one line each for CPU, memory, GPU and GPU memory. */
export function Histories({
  past
}: {
  past: Past | undefined;
}): React.JSX.Element {
  const { words } = useDesk();
  const known = USED.filter(name => past?.[name].some(each => each !== null));
  if (!past || !known.length) {
    return (
      <p className="jp-NbdistDim">
        {words.trans.__('Nothing has been measured in the last minute')}
      </p>
    );
  }
  return (
    <dl className="jp-NbdistHistories">
      {known.map(name => (
        <div key={name} title={words.history(name, past[name])}>
          <dt>
            {words.usedName(name)}
            <small>{words.range(name, past[name])}</small>
          </dt>
          <dd>
            <Graph name={name} past={past[name]} />
          </dd>
          <dd>{words.used(name, past[name][past[name].length - 1])}</dd>
        </div>
      ))}
    </dl>
  );
}

function Graph({
  name,
  past
}: Omit<IProps, 'value'>): React.JSX.Element | null {
  const { settings } = useDesk();
  return settings.showGraphs ? (
    <svg
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      aria-hidden="true"
    >
      <path d={area(past, name)} />
    </svg>
  ) : null;
}
