/** Finds the cluster, job or rank that a command acts on, or asks the user which one. */

import { InputDialog } from '@jupyterlab/apputils';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { Model } from '../server/model';
import {
  ended,
  type ICluster,
  type IJob,
  type IProcess,
  type IRank
} from '../server/records';
import type { Words } from '../words';

export interface IClusterTarget {
  process: IProcess;
  cluster: ICluster;
}

export interface IJobTarget {
  process: IProcess;
  job: IJob;
}

export type Target = IClusterTarget | IJobTarget;

export class Targets {
  constructor(
    private readonly _model: Model,
    private readonly _words: Words
  ) {}

  get processes(): IProcess[] {
    return this._model.state?.processes ?? [];
  }

  get clusters(): IClusterTarget[] {
    return this.processes
      .filter(({ left }) => left !== 0) // without any rank there is nothing to act on
      .flatMap(process =>
        process.clusters.map(cluster => ({ process, cluster }))
      );
  }

  get jobs(): IJobTarget[] {
    return this.processes.flatMap(process =>
      process.jobs.map(job => ({ process, job }))
    );
  }

  get running(): IJobTarget[] {
    return this.jobs.filter(({ job }) => !ended(job));
  }

  get detached(): IJobTarget[] {
    return this.jobs.filter(({ job }) => job.detached);
  }

  /** The name of a cluster or a job, with the name of its notebook. */
  name(target: Target): string {
    const notebook = this._words.processName(target.process);
    if ('cluster' in target) {
      return this._words.trans.__(
        '%1 of %2 (%3)',
        this._words.clusterName(target.cluster),
        notebook,
        this._words.ranks(target.cluster.np)
      );
    }
    const { job } = target;
    const line = job.first_line.slice(0, 40);
    return this._words.trans.__(
      'Job %1 of %2: %3',
      this._words.jobAndCell(job),
      notebook,
      line
    );
  }

  /** The cluster that the arguments name, or the user chooses; undefined if there is none. */
  async cluster(
    args: ReadonlyPartialJSONObject,
    title: string
  ): Promise<IClusterTarget | undefined> {
    if (args.cluster === undefined) {
      return this._choose(title, this.clusters);
    }
    return this.clusters.find(
      ({ process, cluster }) =>
        process.id === args.process && cluster.id === args.cluster
    );
  }

  /** The job that the arguments name, or the user chooses from `jobs`; undefined if there is none. */
  async job(
    args: ReadonlyPartialJSONObject,
    title: string,
    jobs: IJobTarget[]
  ): Promise<IJobTarget | undefined> {
    if (args.job === undefined) {
      return this._choose(title, jobs);
    }
    return this.find(args);
  }

  /** The job with these ids. */
  find(named: { process?: unknown; job?: unknown }): IJobTarget | undefined {
    return this.jobs.find(
      ({ process, job }) => process.id === named.process && job.id === named.job
    );
  }

  /** The cluster or job that the arguments name, or the user chooses. */
  async either(
    args: ReadonlyPartialJSONObject,
    title: string
  ): Promise<Target | undefined> {
    if (args.job !== undefined) {
      return this.job(args, title, this.running);
    }
    if (args.cluster !== undefined) {
      return this.cluster(args, title);
    }
    const own = this.running.filter(({ job }) => !job.cluster);
    return this._choose<Target>(title, [...this.clusters, ...own]);
  }

  /** The rank that the arguments name, or the user chooses. */
  async rank(
    args: ReadonlyPartialJSONObject,
    title: string,
    ranks: IRank[]
  ): Promise<number | undefined> {
    if (typeof args.rank === 'number') {
      return args.rank;
    }
    const said = ranks.map(rank =>
      this._words.trans.__(
        'Rank %1: %2',
        rank.rank,
        this._words.rank(rank).text
      )
    );
    const chosen = await this._ask(title, said);
    return chosen === undefined ? undefined : ranks[chosen].rank;
  }

  private async _choose<T extends Target>(
    title: string,
    targets: T[]
  ): Promise<T | undefined> {
    const names = targets.map(target => this.name(target));
    const chosen = await this._ask(title, names);
    return chosen === undefined ? undefined : targets[chosen];
  }

  /** Ask the user to choose an item, and return its index. A single item is chosen without asking. */
  private async _ask(
    title: string,
    items: string[]
  ): Promise<number | undefined> {
    if (items.length < 2) {
      return items.length ? 0 : undefined;
    }
    // Two items may have the same name.
    const numbered = items.map((item, i) => `${i + 1}. ${item}`);
    const answer = await InputDialog.getItem({ title, items: numbered });
    const chosen = numbered.indexOf(answer.value ?? '');
    return answer.button.accept && chosen >= 0 ? chosen : undefined;
  }
}
