/** The last minute of what ranks use, for the small graphs. */

import type { IProcess, IRank } from './records';

/** Values that are kept. */
export const LENGTH = 60;
/** Values of ranks are taken that often, however often news come. */
const EVERY = 1; // seconds
const USED = ['cpu', 'memory', 'gpu', 'gpu_memory'] as const;

export type Used = (typeof USED)[number];

/** What one rank used, oldest first. */
export type Past = Record<Used, (number | null)[]>;

export class History {
  /** Remember what all ranks use now. */
  take(processes: IProcess[], time: number): void {
    if (time - this._time < EVERY && time >= this._time) {
      return;
    }
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
            kept.set(name, add(this._pasts.get(name), rank));
          }
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

  private _pasts = new Map<string, Past>();
  private _time = 0;
}

function key(
  process: string,
  kind: string,
  owner: string,
  rank: number
): string {
  return `${process}/${kind}/${owner}/${rank}`;
}

function add(past: Past | undefined, rank: IRank): Past {
  const next = past ?? { cpu: [], memory: [], gpu: [], gpu_memory: [] };
  for (const name of USED) {
    next[name].push(rank[name]);
    if (next[name].length > LENGTH) {
      next[name].shift();
    }
  }
  return next;
}
