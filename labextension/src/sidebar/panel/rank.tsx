/** One rank: what it does, its device, what it uses, and its buttons. */

import { refreshIcon, textEditorIcon } from '@jupyterlab/ui-components';
import React from 'react';
import { CommandIDs } from '../acting/commandIds';
import { useDesk } from '../acting/panelContext';
import { Button, Fold, isOpen, Link, State } from './parts';
import { Histories, Meter } from './spark';
import { lineOf, type IRank } from '../server/records';
import { USED } from '../server/history';

export interface IRanksProps {
  process: string;
  kind: 'cluster' | 'job';
  owner: string;
  ranks: IRank[];
  /** The job whose log a rank writes now; '' if there is none. */
  job: string;
  /** The host of the process; a rank on this host does not show its host. */
  host: string;
  /** Whether the process has died, so that its last known state is shown. */
  stale: boolean;
}

export interface IRankProps extends IRanksProps {
  rank: IRank;
}

/** A row for one rank; the rank's histories can be unfolded. */
export function Row(props: IRankProps): React.JSX.Element {
  const { words, history, folded } = useDesk();
  const { rank, process, kind, owner } = props;
  const name = `${process}/${kind}/${owner}/rank/${rank.rank}`;
  const past = history.of(process, kind, owner, rank.rank);
  return (
    <li className="jp-NbdistRank" data-rank={rank.rank}>
      <Fold
        name={name}
        open={false}
        label={words.trans.__('Histories of rank %1', rank.rank)}
      />
      <Standing {...props} />
      <span className="jp-NbdistRank-uses">
        <Place {...props} />
        {!props.stale &&
          USED.map(used => (
            <Meter
              key={used}
              name={used}
              value={rank[used]}
              past={past?.[used] ?? []}
            />
          ))}
      </span>
      {isOpen(folded, name, false) && (
        <div className="jp-NbdistRank-more">
          <Histories past={past} />
        </div>
      )}
    </li>
  );
}

/** The rank's number, what the rank does, and its buttons. */
export function Standing(props: IRankProps): React.JSX.Element {
  const { words } = useDesk();
  const { rank, process, kind, owner, job, stale } = props;
  const trans = words.trans;
  const told = words.rank(rank);
  const state = <State {...(stale ? words.last(told) : told)} />;
  const line = lineOf(rank);
  return (
    <>
      <span
        className="jp-NbdistRank-number"
        title={trans.__('Rank %1', rank.rank)}
      >
        <span className="jp-NbdistHidden">{trans.__('Rank')} </span>
        {rank.rank}
      </span>
      {line && job ? (
        <Link
          command={CommandIDs.cell}
          args={{ process, job, line }}
          title={trans.__('Go to line %1 of the cell', line)}
        >
          {state}
        </Link>
      ) : (
        state
      )}
      <span className="jp-NbdistActions">
        {!stale && kind === 'cluster' && rank.state === 'dead' && (
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
    </>
  );
}

/** The rank's device, host and pid. */
export function Place(props: IRankProps): React.JSX.Element {
  const { words } = useDesk();
  const { rank } = props;
  const host = rank.host === props.host ? '' : rank.host;
  const pid = rank.pid ? words.trans.__('pid %1', rank.pid) : '';
  const all = [rank.device, rank.host, pid].filter(Boolean).join(' · ');
  return (
    <span className="jp-NbdistRank-where" title={all}>
      <span>{rank.device}</span>
      <span className="jp-NbdistRank-place">
        {[host, pid].filter(Boolean).join(' · ')}
      </span>
    </span>
  );
}
