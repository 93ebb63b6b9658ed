/** What ranks have used in the last minute, for the small graphs. */

import type { IProcess, IRank } from './records';

/** How many values are kept of each rank. */
export const LENGTH = 60;
/** The time between two values, however often a new state comes. */
const EVERY = 1; // seconds
export const USED = ['cpu', 'memory', 'gpu', 'gpu_memory'] as const;

export type Used = (typeof USED)[number];

/** What one rank used, oldest first. */
export type Past = Record<Used, (number | null)[]>;

export class History {
  /** Add what all ranks use now. */
  take(processes: IProcess[], time: number): void {
    if (time - this._time < EVERY && time >= this._time) {
      return;
    }
    // While the page did not ask, the last value is repeated, so a minute keeps its length.
    const seconds = this._time ? (time - this._time) / EVERY : 0;
    const missed = Math.min(LENGTH, Math.max(0, Math.round(seconds) - 1));
    this._time = time;
    const kept = new Map<string, Past>();
    for (const process of processes) {
      for (const [kind, owners] of [
        ['cluster', process.clusters],
        ['job', process.jobs.filter(job => !job.cluster)]
      ] as const) {
        for (const { id, ranks } of owners) {
          for (const rank of ranks) {
            const name = key(process.id, kind, id, rank.rank);
            kept.set(name, add(this._pasts.get(name), rank, missed));
          }
          const all = key(process.id, kind, id, 'all');
          kept.set(all, add(this._pasts.get(all), mean(ranks), missed));
        }
      }
    }
    this._pasts = kept;
  }

  /** What a rank of a cluster or a job used. */
  of(
    process: string,
    kind: 'cluster' | 'job',
    owner: string,
    rank: number
  ): Past | undefined {
    return this._pasts.get(key(process, kind, owner, rank));
  }

  /** The mean over all ranks of a cluster or a job whose values are known. */
  all(
    process: string,
    kind: 'cluster' | 'job',
    owner: string
  ): Past | undefined {
    return this._pasts.get(key(process, kind, owner, 'all'));
  }

  private _pasts = new Map<string, Past>();
  private _time = 0;
}

function key(
  process: string,
  kind: string,
  owner: string,
  rank: number | 'all'
): string {
  return `${process}/${kind}/${owner}/${rank}`;
}

type Uses = Pick<IRank, Used>;

function mean(ranks: IRank[]): Uses {
  const of = (name: Used): number | null => {
    const known = ranks.map(rank => rank[name]).filter(each => each !== null);
    return known.length
      ? known.reduce((sum, each) => sum + each, 0) / known.length
      : null;
  };
  return {
    cpu: of('cpu'),
    memory: of('memory'),
    gpu: of('gpu'),
    gpu_memory: of('gpu_memory')
  };
}

function add(past: Past | undefined, rank: Uses, missed: number): Past {
  const next = past ?? { cpu: [], memory: [], gpu: [], gpu_memory: [] };
  for (const name of USED) {
    const values = next[name];
    for (let i = 0; i < missed && values.length > 0; i++) {
      values.push(values[values.length - 1]);
    }
    values.push(rank[name]);
    values.splice(0, values.length - LENGTH);
  }
  return next;
}
