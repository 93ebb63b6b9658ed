/** How things are said: numbers, states, and names. No DOM. */

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
} from './records';
import type { Used } from './history';

/** What an icon and a colour stand for. */
export type Look = 'idle' | 'busy' | 'wait' | 'good' | 'warn' | 'bad';

export class Words {
  constructor(readonly trans: TranslationBundle) {}

  /** What a rank does, and how that looks. */
  rank(rank: IRank): { look: Look; text: string } {
    const said = rank.words || rank.state;
    switch (rank.state) {
      case 'dead':
        return {
          look: 'bad',
          text: this.trans.__('dead: %1', said.replace(/^was killed by /, ''))
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
      case 'queued':
        return { look: 'wait', text: trans.__('queued') };
      case 'running':
        return { look: 'busy', text: trans.__('running') };
      case 'done':
        return { look: 'good', text: trans.__('done') };
      case 'failed':
        return { look: 'bad', text: trans.__('failed') };
      case 'interrupted':
        return { look: 'warn', text: trans.__('interrupted') };
      case 'timed out':
        return { look: 'bad', text: trans.__('timed out') };
      default:
        return { look: 'idle', text: job.state };
    }
  }

  /** The name of a job: the cell that it came from. */
  jobName(job: IJob): string {
    return job.number
      ? this.trans.__('In [%1]', job.number)
      : this.trans.__('Job %1', job.id);
  }

  /** What was so when its process was last heard. */
  last({ text }: { text: string }): { look: Look; text: string } {
    return { look: 'idle', text: this.trans.__('last heard: %1', text) };
  }

  clusterName(cluster: ICluster): string {
    return this.trans.__('Cluster %1', cluster.id);
  }

  /** The name of a process: its notebook's, or that of the job it keeps. */
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
    return process.kind === 'keeper'
      ? this.trans.__(
          'The keeper of this job (process %1 on %2) has vanished; what is shown is the last that was heard.',
          process.pid,
          process.host
        )
      : this.trans.__(
          'This kernel (process %1 on %2) has vanished; its ranks may still run. Stop ends what is left.',
          process.pid,
          process.host
        );
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

  /** What a bar stands at: 300 of 1000, 12.5 steps a second, 56 s left. */
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

  /** 97 % or 1.2 GB, of what a rank uses. */
  used(name: Used, value: number | null): string {
    if (value === null) {
      return '';
    }
    return name === 'cpu' || name === 'gpu' ? inPercent(value) : inBytes(value);
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

  /** The whole in few words, for the status bar: 2 of 4 ranks busy. */
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

/** What a rank of a running job does while it is well. */
const WELL = /^(running|busy|starting|queued|line )/;
