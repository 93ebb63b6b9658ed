/** Announcements for screen readers about clusters, ranks and jobs, without numbers that tick. */

import { ended, vanished, type IProcess, type IState } from '../server/records';
import type { Words } from '../words';

/** If more has happened at once, the rest is only counted. */
const MOST = 3;

/** Describe what has happened between two states. */
export function news(before: IState | null, now: IState, words: Words): string {
  if (!before) {
    return '';
  }
  const old = new Map(before.processes.map(process => [process.id, process]));
  const told = now.processes.flatMap(process =>
    ofProcess(old.get(process.id), process, words)
  );
  const gone = before.processes.filter(
    each => !now.processes.some(process => process.id === each.id)
  );
  for (const process of gone) {
    told.push(words.trans.__('%1 ended', words.processName(process)));
  }
  return told.length > MOST
    ? words.trans.__(
        '%1, and %2 more',
        told.slice(0, MOST).join('. '),
        told.length - MOST
      )
    : told.join('. ');
}

function ofProcess(
  old: IProcess | undefined,
  process: IProcess,
  words: Words
): string[] {
  const trans = words.trans;
  const told: string[] = [];
  if (vanished(process) && old && !vanished(old)) {
    told.push(words.processTrouble(process));
  }
  for (const cluster of process.clusters) {
    const was = old?.clusters.find(each => each.id === cluster.id);
    const name = words.clusterName(cluster);
    if (!was) {
      told.push(trans.__('%1 started with %2', name, words.ranks(cluster.np)));
    }
    const states = new Map(was?.ranks.map(each => [each.rank, each.state]));
    for (const rank of cluster.ranks) {
      const state = states.get(rank.rank);
      if (state && state !== 'dead' && rank.state === 'dead') {
        told.push(
          trans.__('Rank %1 of %2: %3', rank.rank, name, words.rank(rank).text)
        );
      } else if (state === 'dead' && rank.state !== 'dead') {
        told.push(trans.__('Rank %1 of %2 restarted', rank.rank, name));
      }
    }
  }
  for (const was of old?.clusters ?? []) {
    if (!process.clusters.some(each => each.id === was.id)) {
      told.push(trans.__('%1 stopped', words.clusterName(was)));
    }
  }
  for (const job of process.jobs) {
    const was = old?.jobs.find(each => each.id === job.id);
    const name = words.jobName(job);
    if (was && !ended(was) && ended(job)) {
      told.push(
        trans.__(
          '%1: %2',
          name,
          words.reports({ ...job, reports: [], straggler: '' })[0]?.text ??
            words.job(job).text
        )
      );
    }
    const reports = job.reports.filter(
      text => was && !was.reports.includes(text)
    );
    if (was && reports.length && was.reports.length < job.reports.length) {
      told.push(trans.__('%1: %2', name, reports[0]));
    }
  }
  return told;
}
