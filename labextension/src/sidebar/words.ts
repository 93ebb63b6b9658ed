/** Numbers, states and names in words. No DOM. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { inBytes, inDigits, inPercent, inRate, inTime } from '../amounts';
import {
  busy,
  ended,
  vanished,
  type IBar,
  type ICluster,
  type IJob,
  type IProcess,
  type IRank,
  type IState
} from './server/records';
import type { IStopped } from './server/api';
import type { Used } from './server/history';

/** The meaning of an icon and its colour. */
export type Look = 'idle' | 'busy' | 'wait' | 'good' | 'info' | 'warn' | 'bad';

export class Words {
  constructor(readonly trans: TranslationBundle) {}

  /** What a rank does, with its look. */
  rank(rank: IRank): { look: Look; text: string } {
    const said = rank.words || rank.state;
    switch (rank.state) {
      case 'dead':
        return {
          look: 'bad',
          text: said.replace(/^was /, '')
        };
      case 'idle':
        return { look: 'idle', text: this.trans.__('idle') };
      case 'starting':
        return { look: 'wait', text: this.trans.__('starting') };
      case 'busy':
      case 'running':
        return this._doing(said);
      default:
        return { look: 'idle', text: said };
    }
  }

  private _doing(said: string): { look: Look; text: string } {
    const found = /^(?:line (\d+)|running)(?:, in (\S+) for (.+))?$/.exec(said);
    if (!found) {
      return { look: WELL.test(said) ? 'busy' : 'bad', text: said };
    }
    const [, line, waits, since] = found;
    if (waits) {
      const told = this.trans.__('in %1 for %2', waits, since);
      const where = line ? this.trans.__('cell line %1', line) : '';
      return { look: 'wait', text: where ? `${told}, ${where}` : told };
    }
    return {
      look: 'busy',
      text: line
        ? this.trans.__('running cell line %1', line)
        : this.trans.__('running')
    };
  }

  job(job: IJob): { look: Look; text: string } {
    const trans = this.trans;
    switch (job.state) {
      case 'starting':
        return { look: 'wait', text: trans.__('starting') };
      case 'queued':
        return { look: 'wait', text: trans.__('queued') };
      case 'running':
        return { look: 'busy', text: trans.__('running') };
      case 'done':
        return { look: 'good', text: trans.__('done') };
      case 'failed':
        return { look: 'bad', text: trans.__('failed') };
      case 'interrupted':
        return { look: 'info', text: trans.__('interrupted') };
      case 'timed out':
        return { look: 'bad', text: trans.__('timed out') };
      default:
        // tsc sees that no state is missing; a newer server may send another one to an open page.
        return { look: 'idle', text: job.state satisfies never };
    }
  }

  /** What else to show of a job: why it failed, hangs, which rank is slow. */
  reports(job: IJob): { look: Look; text: string }[] {
    // That a job was interrupted is its state, which is shown already.
    const told = job.state === 'interrupted' ? '' : job.told;
    return [
      ...(told ? [{ look: 'bad' as const, text: told }] : []),
      ...job.reports.map(text => ({
        look: OVER.test(text) ? ('info' as const) : ('warn' as const),
        text
      })),
      ...(job.straggler ? [{ look: 'info' as const, text: job.straggler }] : [])
    ];
  }

  /** The name of a job, as in messages and in `%dist jobs`. */
  jobName(job: IJob): string {
    return this.trans.__('Job %1', job.id);
  }

  /** The prompt of the job's cell; '' if no cell has started the job. */
  cell(job: IJob): string {
    return job.number ? this.trans.__('In [%1]', job.number) : '';
  }

  /** The job's id and the prompt of its cell: 2 (In [3]). */
  jobAndCell(job: IJob): string {
    const cell = this.cell(job);
    return cell ? `${job.id} (${cell})` : job.id;
  }

  /** A state that was the last one before its process died. */
  last({ text }: { text: string }): { look: Look; text: string } {
    const said = text.replace(/^running cell (?=line)/, '');
    return { look: 'idle', text: this.trans.__('last seen: %1', said) };
  }

  clusterName(cluster: ICluster): string {
    return this.trans.__('Cluster %1', cluster.id);
  }

  /** Words for how a cluster was stopped. */
  stopped(cluster: ICluster, { ended, left }: IStopped): string {
    const trans = this.trans;
    const name = this.clusterName(cluster);
    if (left) {
      return trans._n(
        '%2: %1 rank cannot be terminated and still runs',
        '%2: %1 ranks cannot be terminated and still run',
        left,
        name
      );
    }
    if (ended === undefined) {
      return trans.__('%1 stopped', name);
    }
    return ended
      ? trans._n(
          '%2: %1 rank terminated',
          '%2: %1 ranks terminated',
          ended,
          name
        )
      : trans.__('%1: nothing to stop, all ranks had exited', name);
  }

  /** The name of a process: the name of its notebook if there is one. */
  processName(process: IProcess): string {
    const file = process.notebook.split('/').pop();
    if (file) {
      return file;
    }
    return process.kind === 'keeper'
      ? this.trans.__('Detached job')
      : this.trans.__('Kernel without a notebook');
  }

  /** What is wrong with a process; '' if nothing is. */
  processTrouble(process: IProcess): string {
    if (!vanished(process)) {
      return '';
    }
    const trans = this.trans;
    if (process.kind === 'keeper') {
      return trans.__(
        'The keeper of this job died (pid %1): showing last known state',
        process.pid
      );
    }
    const { left, pid } = process;
    if (left === null) {
      return trans.__(
        'Kernel died (pid %1 on %2): its ranks cannot be looked up from here',
        pid,
        process.host
      );
    }
    if (!process.clusters.length) {
      return trans.__('Kernel died (pid %1)', pid);
    }
    return left
      ? trans._n(
          'Kernel died (pid %2): %1 rank still running',
          'Kernel died (pid %2): %1 ranks still running',
          left,
          pid
        )
      : trans.__('Kernel died (pid %1): all ranks exited', pid);
  }

  ranks(count: number): string {
    return this.trans._n('%1 rank', '%1 ranks', count);
  }

  /** How long a job has run, or ran. */
  jobTime(job: IJob, now: number): string {
    if (job.seconds !== null) {
      return inTime(job.seconds);
    }
    return job.began === null || ended(job)
      ? ''
      : inTime(Math.floor(now - job.began));
  }

  uptime(cluster: ICluster, now: number): string {
    return inTime(Math.floor(now - cluster.created));
  }

  /** A progress bar in words: 300 of 1000 · 12.5 steps/s · 56 s left. */
  bar(bar: IBar): string {
    const trans = this.trans;
    const parts = [
      bar.total === null
        ? String(bar.done)
        : trans.__('%1 of %2', bar.done, bar.total)
    ];
    if (bar.rate !== null) {
      parts.push(inRate(bar.rate, bar.label));
    }
    if (bar.samples !== null) {
      parts.push(trans.__('%1 samples/s', inDigits(bar.samples)));
    }
    if (bar.left !== null && bar.left > 0) {
      parts.push(trans.__('%1 left', inTime(Math.round(bar.left))));
    }
    if (bar.still !== null) {
      parts.push(trans.__('no step for %1', inTime(bar.still)));
    }
    return parts.join(' · ');
  }

  /** An amount that a rank uses: 97 %, or 1.2 GB. */
  used(name: Used, value: number | null): string {
    if (value === null) {
      return '';
    }
    return name === 'cpu' || name === 'gpu' ? inPercent(value) : inBytes(value);
  }

  /** The smallest and largest amount in a history: min 3 %, max 99 %. */
  range(name: Used, past: (number | null)[]): string {
    const known = past.filter(value => value !== null);
    return known.length
      ? this.trans.__(
          'min %1, max %2',
          this.used(name, Math.min(...known)),
          this.used(name, Math.max(...known))
        )
      : '';
  }

  /** A history in words: Memory in the last minute: min 1.1 GB, max 1.3 GB. */
  history(name: Used, past: (number | null)[]): string {
    return this.trans.__(
      '%1 in the last minute: %2',
      this.usedName(name),
      this.range(name, past)
    );
  }

  /** The most interesting amount: how busy a rank is, or how much memory an idle rank holds. */
  most(
    rank: IRank
  ): { text: string; told: string; share?: number } | undefined {
    const names: Used[] = busy(rank)
      ? ['gpu', 'cpu']
      : ['gpu_memory', 'memory'];
    const name = names.find(each => rank[each] !== null);
    if (name === undefined) {
      return undefined;
    }
    const text = this.used(name, rank[name]);
    const told = `${this.usedName(name)} ${text}`;
    return busy(rank) ? { text, told, share: rank[name] ?? 0 } : { text, told };
  }

  usedName(name: Used): string {
    const names = {
      cpu: this.trans.__('CPU'),
      memory: this.trans.__('Memory'),
      gpu: this.trans.__('GPU'),
      gpu_memory: this.trans.__('GPU memory')
    };
    return names[name];
  }

  /** The counts for the status bar: busy ranks, all ranks, dead ranks. */
  summary(state: IState): { busy: number; total: number; dead: number } {
    const ranks = state.processes
      .filter(process => process.alive)
      .flatMap(process => [
        ...process.clusters.flatMap(cluster => cluster.ranks),
        ...process.jobs
          .filter(job => !job.cluster && job.state === 'running')
          .flatMap(job => job.ranks)
      ]);
    return {
      busy: ranks.filter(busy).length,
      total: ranks.length,
      dead: ranks.filter(rank => rank.state === 'dead').length
    };
  }
}

/** The beginnings of reports about a trouble that is over. */
const OVER = /^(Resolved|The wait is over|It has reacted)/i;

/** The beginnings of words for a rank without an error. */
const WELL = /^(running|busy|starting|queued|line )/;
