/** What the user can do to clusters and jobs. Each action reports its result. */

import {
  Clipboard,
  Dialog,
  Notification,
  showDialog,
  showErrorMessage
} from '@jupyterlab/apputils';
import { snippet } from './magic';
import type { Model } from '../server/model';
import type { IClusterTarget, IJobTarget, Target, Targets } from './targets';
import type { Words } from '../words';

const TOLD_FOR = 8000; // milliseconds
const MOST_IN_NOTIFICATION = 140;

export class Actions {
  constructor(
    private readonly _model: Model,
    private readonly _words: Words,
    private readonly _targets: Targets
  ) {}

  async interrupt({ process, job }: IJobTarget): Promise<void> {
    const trans = this._words.trans;
    const name = this._words.jobName(job);
    if (
      job.detached &&
      !(await this._sure(
        trans.__('Interrupt %1?', this._targets.name({ process, job })),
        trans.__(
          'This job runs without a notebook. Progress since its last checkpoint will be lost.'
        ),
        trans.__('Interrupt')
      ))
    ) {
      return;
    }
    await this._tell(this._model.api.interrupt(process.id, job.id), () =>
      trans.__('%1 interrupted', name)
    );
  }

  async stop(target: IClusterTarget): Promise<void> {
    const trans = this._words.trans;
    const { process, cluster } = target;
    const running = process.jobs.filter(
      job => job.cluster === cluster.id && job.state === 'running'
    );
    const lost = process.alive
      ? trans.__('Variables on its ranks will be lost.')
      : trans.__('Its kernel died; ranks that still run will be terminated.');
    const ends = trans._n(
      'Running job %2 will be terminated.',
      'Running jobs %2 will be terminated.',
      running.length,
      running.map(job => this._words.jobAndCell(job)).join(', ')
    );
    const body = process.alive && running.length ? `${ends} ${lost}` : lost;
    const title = trans.__('Stop %1?', this._targets.name(target));
    if (await this._sure(title, body, trans.__('Stop'))) {
      await this.stopNow(target);
    }
  }

  /** Stop a cluster without asking; the caller has asked the user. */
  async stopNow({ process, cluster }: IClusterTarget): Promise<void> {
    await this._tell(this._model.api.stop(process.id, cluster.id), stopped =>
      this._words.stopped(cluster, stopped)
    );
  }

  async restart(
    { process, cluster }: IClusterTarget,
    rank: number
  ): Promise<void> {
    const trans = this._words.trans;
    const dead =
      cluster.ranks.find(each => each.rank === rank)?.state === 'dead';
    if (
      !dead &&
      !(await this._sure(
        trans.__('Restart rank %1?', rank),
        trans.__('Its process will be terminated and its variables lost.'),
        trans.__('Restart')
      ))
    ) {
      return;
    }
    await this._tell(
      this._model.api.restart(process.id, cluster.id, rank),
      lacks =>
        lacks.length
          ? trans._n(
              'Rank %2 restarted, missing: %3 (re-run the cell that defines it)',
              'Rank %2 restarted, missing: %3 (re-run the cells that define them)',
              lacks.length,
              rank,
              lacks.join(', ')
            )
          : trans.__('Rank %1 restarted', rank)
    );
  }

  async clean(): Promise<void> {
    const trans = this._words.trans;
    const sure = await this._sure(
      trans.__('Clear finished jobs?'),
      trans.__(
        'Finished detached jobs will be deleted, with their logs and results. Dead kernels without running ranks will be removed from the list.'
      ),
      trans.__('Clear')
    );
    if (sure) {
      await this._tell(this._model.api.clean(), removed =>
        removed.length
          ? trans._n('%1 entry cleared', '%1 entries cleared', removed.length)
          : trans.__('Nothing to clear')
      );
    }
  }

  /** Copy the first line of a cell that runs on this cluster. */
  copySnippet({ cluster }: IClusterTarget): void {
    const line = snippet(cluster.np, cluster.backend);
    Clipboard.copyToSystem(`${line}\n`);
    Notification.info(this._words.trans.__('Copied: %1', line), {
      autoClose: TOLD_FOR
    });
  }

  /** Return the stack of each rank. */
  async stacks(target: Target): Promise<Record<string, string>> {
    const of =
      'cluster' in target
        ? { cluster: target.cluster.id }
        : { job: target.job.id };
    return this._model.api.stacks(target.process.id, of);
  }

  private async _sure(
    title: string,
    body: string,
    word: string
  ): Promise<boolean> {
    const trans = this._words.trans;
    const answer = await showDialog({
      title,
      body,
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.warnButton({ label: word })
      ]
    });
    return answer.button.accept;
  }

  /** Wait for an action, and show its result or its error. */
  private async _tell<T>(
    asked: Promise<T>,
    done: (told: T) => string
  ): Promise<void> {
    try {
      Notification.success(done(await asked), { autoClose: TOLD_FOR });
    } catch (error) {
      complain(this._words.trans.__('Error'), messageOf(error));
    }
    await this._model.refresh();
  }
}

/** Show an error: in a notification, or in a dialog, as notifications cut long texts. */
export function complain(title: string, message: string): void {
  if (message.length < MOST_IN_NOTIFICATION) {
    Notification.error(message, { autoClose: false });
  } else {
    void showErrorMessage(title, message);
  }
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
