/** A tab with the metrics of a job. */

import type { IDisposable } from '@lumino/disposable';
import { Widget } from '@lumino/widgets';
import { Drawn } from './view/drawn';
import type { Followed, Jobs } from './data/follow';
import type { IJobName } from './host';
import { asLastKnown } from './output';

export class MetricsTab extends Widget {
  constructor(
    readonly job: IJobName,
    jobs: Jobs
  ) {
    super();
    this.addClass('jp-NbdistMetricsTab');
    this.node.append(this._drawn.node);
    this._watch = jobs.follow(job, followed => {
      this._show(followed);
    });
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._watch.dispose();
      this._drawn.dispose();
      super.dispose();
    }
  }

  private _show({ state, unknown, trouble }: Followed): void {
    if (state) {
      this._drawn.show(unknown ? asLastKnown(state) : state);
    }
    if (trouble || (unknown && !state)) {
      this._drawn.complain(
        trouble ||
          'The server has no data of this job any more. Close this tab.'
      );
    }
  }

  private readonly _drawn = new Drawn(true);
  private readonly _watch: IDisposable;
}
