/** A job: how far it is, what it has logged, and what is wrong with it. */

import { runIcon, stopIcon, textEditorIcon } from '@jupyterlab/ui-components';
import React from 'react';
import { short } from '../metrics/numbers';
import { CommandIDs } from './commandIds';
import { useDesk } from './desk';
import { LookIcon, stacksIcon } from './icons';
import { Button, Fold, isOpen, State } from './parts';
import { Ranks } from './ranks';
import {
  ended,
  vanished,
  type IBar,
  type IJob,
  type IProcess
} from './records';

interface IProps {
  process: IProcess;
  job: IJob;
}

export function Job({ process, job }: IProps): React.JSX.Element {
  const { words, now, folded, settings } = useDesk();
  const own = !job.cluster;
  const over = ended(job);
  const stale = vanished(process) && !over;
  const name = `${process.id}/job/${job.id}`;
  const open = isOpen(folded, name, !over);
  const label = words.jobName(job);
  return (
    <section
      role="group"
      className="jp-NbdistJob"
      aria-label={label}
      data-job={job.id}
    >
      <div className="jp-NbdistLine">
        <Fold name={name} open={!over} label={label}>
          <span className="jp-NbdistJob-name">{label}</span>
          <code title={job.first_line}>{job.first_line}</code>
        </Fold>
        <Actions process={process} job={job} />
      </div>
      <div className="jp-NbdistLine jp-NbdistDim">
        <State {...(stale ? words.last(words.job(job)) : words.job(job))} />
        {!stale && <span>{words.jobTime(job, now)}</span>}
        {own && <span>{words.ranks(job.ranks.length)}</span>}
        {own && <span>{job.launcher}</span>}
        {job.detached && (
          <span>{words.trans.__('detached as %1', job.id)}</span>
        )}
      </div>
      <Reports job={job} />
      {open && !over && job.bars.map((bar, i) => <Bar key={i} bar={bar} />)}
      {open && settings.showMetrics && <Metrics metrics={job.metrics} />}
      {open && own && job.ranks.length > 0 && (
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
    </section>
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
          label={trans.__('Attach %1 to the current notebook', job.id)}
          word={trans.__('Attach')}
          command={CommandIDs.attach}
          args={args}
        />
      )}
      {process.alive && job.state === 'running' && (
        <Button
          icon={stacksIcon}
          label={trans.__('Where are the ranks of %1', label)}
          command={CommandIDs.stacks}
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
  const found = [
    ...(job.told ? [{ look: 'bad' as const, text: job.told }] : []),
    ...job.reports.map(text => ({ look: 'warn' as const, text })),
    ...(job.straggler ? [{ look: 'warn' as const, text: job.straggler }] : [])
  ];
  return found.length ? (
    <ul className="jp-NbdistReports">
      {found.map(({ look, text }, i) => (
        <li key={i} className={`jp-mod-${look}`}>
          <LookIcon look={look} />
          <span>{text}</span>
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
