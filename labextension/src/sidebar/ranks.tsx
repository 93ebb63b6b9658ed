/** The ranks of a cluster or a job; of many only those are drawn that can be seen. */

import { refreshIcon, textEditorIcon } from '@jupyterlab/ui-components';
import React, { useState } from 'react';
import { CommandIDs } from './commandIds';
import { useDesk } from './desk';
import { Button, State } from './parts';
import { Meter } from './spark';
import type { IRank } from './records';

/** More are shown in a box of its own height. */
const MOST = 32;
/** Pixels; rows are all alike, see `base.css`. */
const ROW = 38;
const SHOWN = 12;

interface IProps {
  process: string;
  kind: 'cluster' | 'job';
  owner: string;
  ranks: IRank[];
  /** The job whose log a rank writes now; '' if there is none. */
  job: string;
  /** The host of the process, which goes without saying. */
  host: string;
  /** Whether the process has gone, and what is shown is the last of it. */
  stale: boolean;
}

export function Ranks(props: IProps): React.JSX.Element {
  const { words } = useDesk();
  const [top, setTop] = useState(0);
  const { ranks } = props;
  const label = words.trans.__('Ranks');
  if (ranks.length <= MOST) {
    return (
      <ul className="jp-NbdistRanks" aria-label={label}>
        {ranks.map(rank => (
          <Rank key={rank.rank} rank={rank} {...props} />
        ))}
      </ul>
    );
  }
  const first = Math.max(0, Math.floor(top / ROW) - 2);
  const last = Math.min(ranks.length, first + SHOWN + 5);
  return (
    <div
      className="jp-NbdistWindow"
      style={{ height: SHOWN * ROW }}
      tabIndex={0}
      role="group"
      aria-label={words.ranks(ranks.length)}
      onScroll={event => {
        setTop(event.currentTarget.scrollTop);
      }}
    >
      <ul
        className="jp-NbdistRanks"
        aria-label={label}
        style={{
          paddingTop: first * ROW,
          height: ranks.length * ROW
        }}
      >
        {ranks.slice(first, last).map(rank => (
          <Rank key={rank.rank} rank={rank} {...props} />
        ))}
      </ul>
    </div>
  );
}

function Rank(props: IProps & { rank: IRank }): React.JSX.Element {
  const { words, history } = useDesk();
  const { rank, process, kind, owner, job } = props;
  const trans = words.trans;
  const told = words.rank(rank);
  const past = history.of(process, kind, owner, rank.rank);
  const host = rank.host === props.host ? '' : rank.host;
  const pid = rank.pid ? trans.__('pid %1', rank.pid) : '';
  const place = [host, pid].filter(Boolean).join(' · ');
  const all = [rank.device, rank.host, pid].filter(Boolean).join(' · ');
  return (
    <li className="jp-NbdistRank" data-rank={rank.rank}>
      <span
        className="jp-NbdistRank-number"
        title={trans.__('Rank %1', rank.rank)}
      >
        <span className="jp-NbdistHidden">{trans.__('Rank')} </span>
        {rank.rank}
      </span>
      <State {...(props.stale ? words.last(told) : told)} />
      <span className="jp-NbdistActions">
        {kind === 'cluster' && rank.state === 'dead' && (
          <Button
            icon={refreshIcon}
            label={trans.__('Restart rank %1', rank.rank)}
            word={trans.__('Restart')}
            command={CommandIDs.restart}
            args={{ process, cluster: owner, rank: rank.rank }}
          />
        )}
        {job && (
          <Button
            icon={textEditorIcon}
            label={trans.__('Open the log of rank %1', rank.rank)}
            command={CommandIDs.log}
            args={{ process, job, rank: rank.rank }}
          />
        )}
      </span>
      <span className="jp-NbdistRank-uses">
        <span className="jp-NbdistRank-device" title={all}>
          {rank.device}
        </span>
        <span className="jp-NbdistRank-place" title={all}>
          {place}
        </span>
        {(['cpu', 'memory', 'gpu', 'gpu_memory'] as const).map(name => (
          <Meter
            key={name}
            name={name}
            value={rank[name]}
            past={past?.[name] ?? []}
          />
        ))}
      </span>
    </li>
  );
}
