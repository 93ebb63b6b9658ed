/** The state of nbdist's processes, as the server sends it: see `nbdist/published/state_file.py`. */

import type { ReportedState } from '../../metrics/data/state';

/** The states of a rank that belongs to a cluster. */
export type RankState = 'starting' | 'idle' | 'busy' | 'dead';

/** A rank that belongs to a job alone has the job's state where no rank's fits. */
export type ShownState = RankState | ReportedState | 'ended';

export interface IRank {
  rank: number;
  state: ShownState;
  /** What the rank does, in words. */
  words: string;
  host: string;
  pid: number;
  device: string;
  line: number | null;
  /** Percent of one core. */
  cpu: number | null;
  /** Bytes. */
  memory: number | null;
  /** Percent. */
  gpu: number | null;
  /** Bytes. */
  gpu_memory: number | null;
}

/** A loop of rank 0. */
export interface IBar {
  label: string;
  done: number;
  total: number | null;
  /** Iterations a second. */
  rate: number | null;
  /** Samples a second of all ranks. */
  samples: number | null;
  /** Seconds to its end. */
  left: number | null;
  /** Seconds since the last step, if that is far longer than a step takes. */
  still: number | null;
}

export interface IJob {
  id: string;
  /** The cell's execution count. */
  number: number;
  state: ReportedState;
  ranks: IRank[];
  first_line: string;
  launcher: string;
  /** The name of the folder with the job's files. */
  logs: string;
  /** The id of its cluster, '' if the job has ranks of its own. */
  cluster: string;
  created: number;
  began: number | null;
  seconds: number | null;
  /** How the job failed, in one line. */
  told: string;
  /** The present reports of hangs, restarts and countdowns. */
  reports: string[];
  straggler: string;
  bars: IBar[];
  /** The last values of the first metrics; null where a value is not finite. */
  metrics: Record<string, number | null>;
  detached: boolean;
}

export interface ICluster {
  id: string;
  np: number;
  backend: string;
  launcher: string;
  state: 'running' | 'lost';
  created: number;
  ranks: IRank[];
}

/** A kernel with clusters and jobs, or the keeper of a detached job. */
export interface IProcess {
  id: string;
  pid: number;
  host: string;
  /** The kernel's id, '' if no Jupyter server has started it. */
  kernel: string;
  notebook: string;
  kind: 'kernel' | 'keeper';
  clusters: ICluster[];
  jobs: IJob[];
  alive: boolean;
  /** How many ranks of a dead kernel still run; null if that is not known. */
  left: number | null;
}

/** A file of state that is broken, of another version, or not trusted. */
export interface IUnreadable {
  id: string;
  why: string;
}

export interface IState {
  processes: IProcess[];
  unreadable: IUnreadable[];
  /** The server's time, in seconds. */
  time: number;
}

type Sent<T> = Partial<T> | null | undefined;

/** Fill in the fields that the server left out because they are empty or not known. */
export function state(sent: Sent<IState>): IState {
  return {
    processes: each(sent?.processes, process),
    unreadable: sent?.unreadable ?? [],
    time: sent?.time ?? Date.now() / 1000
  };
}

function each<T>(sent: T[] | undefined, fill: (one: Partial<T>) => T): T[] {
  return (sent ?? []).map(fill);
}

function process(sent: Partial<IProcess>): IProcess {
  return {
    id: '',
    pid: 0,
    host: '',
    kernel: '',
    notebook: '',
    kind: 'kernel',
    alive: true,
    left: null,
    ...sent,
    clusters: each(sent.clusters, cluster),
    jobs: each(sent.jobs, job)
  };
}

function cluster(sent: Partial<ICluster>): ICluster {
  return {
    id: '',
    np: 0,
    backend: '',
    launcher: '',
    state: 'running',
    created: 0,
    ...sent,
    ranks: each(sent.ranks, rank)
  };
}

function job(sent: Partial<IJob>): IJob {
  return {
    id: '',
    number: 0,
    state: 'starting',
    first_line: '',
    launcher: '',
    logs: '',
    cluster: '',
    created: 0,
    began: null,
    seconds: null,
    told: '',
    reports: [],
    straggler: '',
    metrics: {},
    detached: false,
    ...sent,
    ranks: each(sent.ranks, rank),
    bars: each(sent.bars, bar)
  };
}

function rank(sent: Partial<IRank>): IRank {
  return {
    rank: 0,
    state: 'starting',
    words: '',
    host: '',
    pid: 0,
    device: '',
    line: null,
    cpu: null,
    memory: null,
    gpu: null,
    gpu_memory: null,
    ...sent
  };
}

function bar(sent: Partial<IBar>): IBar {
  return {
    label: '',
    done: 0,
    total: null,
    rate: null,
    samples: null,
    left: null,
    still: null,
    ...sent
  };
}

const NOT_ENDED: readonly ReportedState[] = ['starting', 'queued', 'running'];

/** Whether a job has ended, well or not. */
export function ended(job: IJob): boolean {
  return !NOT_ENDED.includes(job.state);
}

/** Whether a process has died. A keeper that has ended after its job has not died. */
export function vanished(process: IProcess): boolean {
  return (
    !process.alive &&
    (process.kind !== 'keeper' || process.jobs.some(job => !ended(job)))
  );
}

/** Whether a rank runs code now. */
export function busy(rank: IRank): boolean {
  return rank.state === 'busy' || rank.state === 'running';
}

/** The line of the cell at which a rank is, or was at its last report; null if it is not known. */
export function lineOf(rank: IRank): number | null {
  const told = /(?:^|in )line (\d+)/.exec(rank.words)?.[1];
  return rank.line ?? (told === undefined ? null : Number(told));
}
