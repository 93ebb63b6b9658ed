/** What the server tells of all processes of ours; see `nbdist/published/state_file.py`. */

export type RankState = 'starting' | 'idle' | 'busy' | 'dead';

export interface IRank {
  rank: number;
  /** A rank of a cluster is in a `RankState`; one of a job has the job's state. */
  state: string;
  /** What it does, as a person would say it. */
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

/** One of rank zero's loops. */
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
  /** Seconds since it ended a step, if that is far longer than one takes. */
  still: number | null;
}

export interface IJob {
  id: string;
  /** The cell's execution count. */
  number: number;
  /** queued, running, done, failed, interrupted or timed out. */
  state: string;
  ranks: IRank[];
  first_line: string;
  launcher: string;
  /** The name of the folder where its files lie. */
  logs: string;
  /** The cluster it runs on, '' if its ranks are its own. */
  cluster: string;
  created: number;
  began: number | null;
  seconds: number | null;
  /** How it failed, in a line. */
  told: string;
  /** Hangs, restarts and countdowns, as they stand. */
  reports: string[];
  straggler: string;
  bars: IBar[];
  /** The last value of the first metrics; null where it is not finite. */
  metrics: Record<string, number | null>;
  detached: boolean;
}

export interface ICluster {
  id: string;
  np: number;
  backend: string;
  launcher: string;
  /** running or lost. */
  state: string;
  created: number;
  ranks: IRank[];
}

/** A kernel with clusters and jobs, or the keeper of a detached job. */
export interface IProcess {
  id: string;
  pid: number;
  host: string;
  /** The kernel's id, '' where it is none of a Jupyter server's. */
  kernel: string;
  notebook: string;
  kind: string;
  clusters: ICluster[];
  jobs: IJob[];
  alive: boolean;
  /** Of one that has gone, how many of its ranks still run; null if nobody knows. */
  left: number | null;
}

/** A file of state that is broken, of another version, or not to be trusted. */
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

/** Fill in what was left out because it is empty or not known. */
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
    state: '',
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
    state: '',
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

/** Whether a job has come to its end, whichever. */
export function ended(job: IJob): boolean {
  return !['starting', 'queued', 'running'].includes(job.state);
}

/** Whether a process has gone without a word; a keeper whose job is over is just done. */
export function vanished(process: IProcess): boolean {
  return (
    !process.alive &&
    (process.kind !== 'keeper' || process.jobs.some(job => !ended(job)))
  );
}

/** Whether a rank does something now. */
export function busy(rank: IRank): boolean {
  return rank.state === 'busy' || rank.state === 'running';
}

/** The line of the cell at which a rank is, or was when it was last heard; null if nobody knows. */
export function lineOf(rank: IRank): number | null {
  const told = /(?:^|in )line (\d+)/.exec(rank.words)?.[1];
  return rank.line ?? (told === undefined ? null : Number(told));
}
