/** Follows the metrics of jobs at the server, once for each job, whatever the number of its views. */

import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import type { IJobPlace, Stream } from '../../sidebar/server/stream';
import { decode, type IState, type JobState } from './state';

const OVER: readonly JobState[] = [
  'done',
  'failed',
  'interrupted',
  'timed out',
  'lost'
];

/** Whether a job sends nothing more. */
export function isOver(state: IState | null): boolean {
  return state !== null && OVER.includes(state.state);
}

/** One job that is followed. */
export class Followed {
  /** The job's last state; null before the first frame. */
  get state(): IState | null {
    return this._state;
  }

  /** Whether the server does not know the job. */
  get unknown(): boolean {
    return this._unknown;
  }

  /** Why the job cannot be shown; '' if it can. */
  get trouble(): string {
    return this._trouble;
  }

  /** Emitted at every change. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Take a frame; null means that the server does not know the job. */
  take(frame: DataView | null): void {
    this._trouble = '';
    this._unknown = frame === null;
    if (frame) {
      try {
        this._state = decode(frame, this._state);
      } catch (error) {
        this._trouble = error instanceof Error ? error.message : String(error);
      }
    }
    this._changed.emit();
  }

  /** Note that the server does not answer; the next frame clears this note. */
  lose(): void {
    this._trouble =
      'The Jupyter server does not answer. What is shown may be out of date.';
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _state: IState | null = null;
  private _unknown = false;
  private _trouble = '';
}

/** All jobs that a page follows. */
export class Jobs {
  constructor(private readonly _stream: Stream) {
    _stream.broken.connect(() => {
      this._entries.forEach(({ job }) => {
        job.lose();
      });
    });
  }

  /**
   * Follow a job until the result is disposed.
   *
   * @param told Called at every change, and at once if something is known already.
   */
  follow(place: IJobPlace, told: (job: Followed) => void): IDisposable {
    const key = `${place.folder}/${place.job}`;
    let entry = this._entries.get(key);
    if (!entry) {
      const job = new Followed();
      const watch = this._stream.followMetrics(place, frame => {
        job.take(frame);
      });
      entry = { job, watch, users: 0 };
      this._entries.set(key, entry);
    }
    const { job, watch } = entry;
    entry.users++;
    const changed = (): void => {
      told(job);
    };
    job.changed.connect(changed);
    if (job.state || job.unknown || job.trouble) {
      told(job);
    }
    return new DisposableDelegate(() => {
      job.changed.disconnect(changed);
      entry.users--;
      if (entry.users === 0) {
        this._entries.delete(key);
        watch.dispose();
      }
    });
  }

  private readonly _entries = new Map<
    string,
    { job: Followed; watch: IDisposable; users: number }
  >();
}
