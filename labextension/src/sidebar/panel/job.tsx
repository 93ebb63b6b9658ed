/** A job: its progress, the metrics it has logged, and what is wrong with it. */

import { runIcon, stopIcon, textEditorIcon } from '@jupyterlab/ui-components';
import React from 'react';
import { short } from '../../metrics/data/numbers';
import { CommandIDs } from '../acting/commandIds';
import { useDesk } from '../acting/panelContext';
import { curvesIcon, LookIcon, stacksIcon } from './icons';
import { Button, Coded, Fold, isOpen, Link, State } from './parts';
import { Ranks } from './ranks';
import {
  ended,
  vanished,
  type IBar,
  type IJob,
  type IProcess
} from '../server/records';

interface IProps {
  process: IProcess;
  job: IJob;
}

export function Job({ process, job }: IProps): React.JSX.Element {
  const { folded } = useDesk();
  const { words } = useDesk();
  const over = ended(job);
  const name = `${process.id}/job/${job.id}`;
  const parts = <Inside process={process} job={job} />;
  const open = !over || isOpen(folded, name, false);
  return (
    <section
      role="group"
      className="jp-NbdistJob"
      aria-label={words.jobName(job)}
      data-job={job.id}
    >
      <div className="jp-NbdistLine">
        <Title process={process} job={job} name={name} />
        <Actions process={process} job={job} />
      </div>
      <Standing process={process} job={job} />
      <Reports job={job} />
      {open && parts}
    </section>
  );
}

/** The job's name, its cell and its first line. Details of an ended job are folded at first. */
function Title(props: IProps & { name: string }): React.JSX.Element {
  const { words, settings } = useDesk();
  const { process, job, name } = props;
  const label = words.jobName(job);
  const more =
    (settings.showMetrics && Object.keys(job.metrics).length > 0) ||
    (!job.cluster && job.ranks.length > 0);
  const id = <span className="jp-NbdistJob-name">{label}</span>;
  return (
    <span className="jp-NbdistTitle">
      {ended(job) && more ? (
        <Fold name={name} open={false} label={label}>
          {id}
        </Fold>
      ) : (
        id
      )}
      {job.number > 0 && (
        <Link
          command={CommandIDs.cell}
          args={{ process: process.id, job: job.id }}
          title={words.trans.__('Go to the cell of %1', label)}
        >
          {words.cell(job)}
        </Link>
      )}
      <code title={job.first_line}>{job.first_line}</code>
    </span>
  );
}

/** The job's state in words. */
function Standing({ process, job }: IProps): React.JSX.Element {
  const { words, now } = useDesk();
  const own = !job.cluster;
  const stale = vanished(process) && !ended(job);
  return (
    <div className="jp-NbdistLine jp-NbdistDim">
      <State {...(stale ? words.last(words.job(job)) : words.job(job))} />
      {!stale && <span>{words.jobTime(job, now)}</span>}
      {own && <span>{words.ranks(job.ranks.length)}</span>}
      {own && <span>{job.launcher}</span>}
      {job.detached && (
        <span
          title={words.trans.__('This job keeps running without the notebook')}
        >
          {words.trans.__('detached')}
        </span>
      )}
    </div>
  );
}

function Inside({ process, job }: IProps): React.JSX.Element {
  const { settings } = useDesk();
  return (
    <>
      {!ended(job) && job.bars.map((bar, i) => <Bar key={i} bar={bar} />)}
      {settings.showMetrics && <Metrics metrics={job.metrics} />}
      {!job.cluster && job.ranks.length > 0 && (
        <Ranks
          process={process.id}
          kind="job"
          owner={job.id}
          ranks={job.ranks}
          job={job.id}
          host={process.host}
          stale={vanished(process)}
        />
      )}
    </>
  );
}

function Actions({ process, job }: IProps): React.JSX.Element {
  const { trans } = useDesk().words;
  const args = { process: process.id, job: job.id };
  const label = useDesk().words.jobName(job);
  return (
    <span className="jp-NbdistActions">
      {job.detached && (
        <Button
          icon={runIcon}
          label={trans.__('Attach %1 to the current notebook', label)}
          word={trans.__('Attach')}
          command={CommandIDs.attach}
          args={args}
        />
      )}
      {process.alive && job.state === 'running' && (
        <Button
          icon={stacksIcon}
          label={trans.__('Show stack traces of %1', label)}
          command={CommandIDs.stacks}
          args={args}
        />
      )}
      {Object.keys(job.metrics).length > 0 && (
        <Button
          icon={curvesIcon}
          label={trans.__('Open the metrics of %1', label)}
          command={CommandIDs.metrics}
          args={args}
        />
      )}
      {job.cluster && job.ranks.length > 0 && (
        <Button
          icon={textEditorIcon}
          label={trans.__('Open a log of %1', label)}
          command={CommandIDs.log}
          args={args}
        />
      )}
      {process.alive && !ended(job) && (
        <Button
          icon={stopIcon}
          label={trans.__('Interrupt %1', label)}
          command={CommandIDs.interrupt}
          args={args}
        />
      )}
    </span>
  );
}

function Reports({ job }: { job: IJob }): React.JSX.Element | null {
  const found = useDesk().words.reports(job);
  return found.length ? (
    <ul className="jp-NbdistReports">
      {found.map(({ look, text }, i) => (
        <li key={i} className={`jp-mod-${look}`}>
          <LookIcon look={look} />
          <span>
            <Coded text={text} />
          </span>
        </li>
      ))}
    </ul>
  ) : null;
}

function Bar({ bar }: { bar: IBar }): React.JSX.Element {
  const { words } = useDesk();
  const label = bar.label || words.trans.__('Progress');
  const told = words.bar(bar);
  return (
    <div className="jp-NbdistBar">
      <span className="jp-NbdistBar-label">{label}</span>
      <span className="jp-NbdistBar-told">{told}</span>
      {bar.total !== null && (
        <progress
          value={bar.done}
          max={Math.max(1, bar.total)}
          aria-label={label}
        />
      )}
    </div>
  );
}

function Metrics({ metrics }: Pick<IJob, 'metrics'>): React.JSX.Element | null {
  const named = Object.entries(metrics);
  return named.length ? (
    <dl className="jp-NbdistMetrics">
      {named.map(([name, value]) => (
        <div key={name}>
          <dt title={name}>{name}</dt>
          <dd>{short(value)}</dd>
        </div>
      ))}
    </dl>
  ) : null;
}
