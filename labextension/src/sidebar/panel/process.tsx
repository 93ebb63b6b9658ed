/** A kernel with its clusters and jobs, or a keeper with its detached job. */

import { closeIcon, copyIcon } from '@jupyterlab/ui-components';
import React from 'react';
import { CommandIDs } from '../acting/commandIds';
import { useDesk } from '../acting/panelContext';
import { LookIcon, stacksIcon } from './icons';
import { Job } from './job';
import { Button, Fold, isOpen } from './parts';
import { Ranks } from './ranks';
import {
  ended,
  vanished,
  type ICluster,
  type IProcess
} from '../server/records';

export function Process({
  process
}: {
  process: IProcess;
}): React.JSX.Element | null {
  const { words, settings, folded } = useDesk();
  // Jobs are shown after their cluster has gone, so the user sees how they ended.
  const clusters = new Set(process.clusters.map(({ id }) => id));
  const jobs = process.jobs.filter(
    job => !clusters.has(job.cluster) && (settings.showEnded || !ended(job))
  );
  if (!process.clusters.length && !jobs.length) {
    return null;
  }
  const trouble = words.processTrouble(process);
  const open = isOpen(folded, process.id, !trouble);
  return (
    <section
      role="group"
      className="jp-NbdistProcess"
      aria-label={words.processName(process)}
      data-process={process.id}
    >
      <Head process={process} />
      {trouble && (
        <p className="jp-NbdistTrouble">
          <LookIcon look={process.left === 0 ? 'info' : 'bad'} />
          <span>{trouble}</span>
        </p>
      )}
      {open &&
        process.clusters.map(cluster => (
          <Cluster key={cluster.id} process={process} cluster={cluster} />
        ))}
      {open &&
        jobs.map(job => <Job key={job.id} process={process} job={job} />)}
    </section>
  );
}

function Head({ process }: { process: IProcess }): React.JSX.Element {
  const { words, run, pathOf } = useDesk();
  const path = pathOf(process);
  const name = path.split('/').pop() || words.processName(process);
  return (
    <h4 className="jp-NbdistHead">
      <Fold
        name={process.id}
        open={!vanished(process)}
        label={words.trans.__('Details of %1', name)}
      />
      {path ? (
        <button
          type="button"
          className="jp-NbdistLink"
          title={words.trans.__('Open %1', path)}
          onClick={() => {
            run(CommandIDs.notebook, { path });
          }}
        >
          {name}
        </button>
      ) : (
        <span title={process.notebook}>{name}</span>
      )}
      <span
        className="jp-NbdistDim"
        title={words.trans.__('pid %1', process.pid)}
      >
        {process.host}
      </span>
    </h4>
  );
}

interface IProps {
  process: IProcess;
  cluster: ICluster;
}

function Cluster({ process, cluster }: IProps): React.JSX.Element {
  const { words, now, folded } = useDesk();
  const name = `${process.id}/cluster/${cluster.id}`;
  const open = isOpen(folded, name, true);
  const label = words.clusterName(cluster);
  return (
    <section
      role="group"
      className="jp-NbdistCluster"
      aria-label={label}
      data-cluster={cluster.id}
    >
      <div className="jp-NbdistLine">
        <Fold name={name} open={true} label={label}>
          <span className="jp-NbdistCluster-name">{label}</span>
        </Fold>
        <Actions process={process} cluster={cluster} />
      </div>
      <div className="jp-NbdistLine jp-NbdistDim">
        <span>{words.ranks(cluster.np)}</span>
        <span>{cluster.backend}</span>
        <span>{cluster.launcher}</span>
        <span title={words.trans.__('Up for')}>
          {process.alive && words.uptime(cluster, now)}
        </span>
      </div>
      {cluster.state === 'lost' && (
        <p className="jp-NbdistTrouble">
          <LookIcon look="bad" />
          <span>
            {words.trans.__(
              'All ranks have exited. Stop this cluster, or start another.'
            )}
          </span>
        </p>
      )}
      {open && <Inside process={process} cluster={cluster} />}
    </section>
  );
}

/** Jobs that run or wait, the ranks, and jobs that have ended, the latest first. */
function Inside({ process, cluster }: IProps): React.JSX.Element {
  const { settings } = useDesk();
  const jobs = process.jobs.filter(job => job.cluster === cluster.id);
  const current = jobs.find(job => job.state === 'running') ?? [...jobs].pop();
  const over = jobs.filter(ended).reverse();
  return (
    <>
      {jobs
        .filter(job => !ended(job))
        .map(job => (
          <Job key={job.id} process={process} job={job} />
        ))}
      <Ranks
        process={process.id}
        kind="cluster"
        owner={cluster.id}
        ranks={cluster.ranks}
        job={current?.id ?? ''}
        host={process.host}
        stale={vanished(process)}
      />
      {settings.showEnded &&
        over.map(job => <Job key={job.id} process={process} job={job} />)}
    </>
  );
}

function Actions({ process, cluster }: IProps): React.JSX.Element {
  const { words } = useDesk();
  const trans = words.trans;
  const label = words.clusterName(cluster);
  const args = { process: process.id, cluster: cluster.id };
  return (
    <span className="jp-NbdistActions">
      {process.alive && (
        <Button
          icon={copyIcon}
          label={trans.__('Copy the first line of a cell for %1', label)}
          command={CommandIDs.snippet}
          args={args}
        />
      )}
      {process.alive && (
        <Button
          icon={stacksIcon}
          label={trans.__('Show stack traces of %1', label)}
          command={CommandIDs.stacks}
          args={args}
        />
      )}
      {process.left !== 0 && (
        <Button
          icon={closeIcon}
          label={trans.__('Stop %1', label)}
          command={CommandIDs.stop}
          args={args}
        />
      )}
    </span>
  );
}
