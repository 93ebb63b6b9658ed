/** What the page knows of all clusters and jobs. It polls more often while a view is shown. */

import { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { Signal, type ISignal } from '@lumino/signaling';
import { ApiError, type Api } from './api';
import { History } from './history';
import type { IState } from './records';
import type { Stream } from './stream';

/** Why the state is not known, or may be out of date. */
export type Trouble =
  /** The first answer has not come yet. */
  | 'asking'
  /** The server does not have nbdist's server extension. */
  | 'missing'
  /** The server denies access. */
  | 'forbidden'
  /** The server cannot be reached. */
  | 'disconnected'
  /** The server answers with an error. */
  | 'failing';

/** Milliseconds between two redraws of the views, at least. */
const DRAW_EVERY = 250;
/** Milliseconds between two requests, at least, while no view shows the state. */
const HIDDEN_EVERY = 5000;
const LONGEST_WAIT = 30_000;

export class Model implements IDisposable {
  /**
   * @param connected - Whether the server can be reached; if not, no request is made.
   */
  constructor(
    readonly api: Api,
    readonly stream: Stream,
    connected: () => boolean = () => true
  ) {
    stream.state.connect(this._onState, this);
    // The answer to a request shows whether the server is still there.
    stream.broken.connect(this._onBroken, this);
    this._poll = new Poll({
      auto: false,
      name: 'nbdist:state',
      factory: () => this._ask(),
      frequency: { interval: 1000, backoff: true, max: LONGEST_WAIT },
      standby: () =>
        document.hidden || !connected() || (stream.live && this._heard)
    });
    this._pace();
  }

  /** Emitted when there is something new to draw. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The last known state; null before the first answer. */
  get state(): IState | null {
    return this._state;
  }

  /** What is wrong; null if `state` is up to date. */
  get trouble(): Trouble | null {
    return this._trouble;
  }

  /** The error message of the last request that failed. */
  get told(): string {
    return this._told;
  }

  get isDisposed(): boolean {
    return this._poll.isDisposed;
  }

  dispose(): void {
    if (!this.isDisposed) {
      window.clearTimeout(this._timer);
      this._poll.dispose();
      this.stream.dispose();
      Signal.clearData(this);
    }
  }

  start(): void {
    void this._poll.start();
  }

  /** Whether the panel is shown. */
  set watched(watched: boolean) {
    this._watched = watched;
    this.stream.wanted = watched;
    this._heard = false;
    this._pace();
    if (watched) {
      void this.refresh();
    }
  }

  /** How often the server is asked, in milliseconds. */
  set interval(interval: number) {
    this._interval = interval;
    this._pace();
  }

  /** Ask the server now, even if the stream sends changes. */
  async refresh(): Promise<void> {
    await this._ask().catch(() => undefined); // views show what is wrong
  }

  readonly history = new History();

  private _pace(): void {
    const least = this._watched ? 0 : HIDDEN_EVERY;
    this._poll.frequency = {
      interval: Math.max(least, this._interval),
      backoff: true,
      max: LONGEST_WAIT
    };
  }

  private async _ask(): Promise<void> {
    const told = this._count;
    try {
      const state = await this.api.state();
      // If the stream has sent a state meanwhile, that state may be newer than this answer.
      if (told === this._count) {
        this._take(state);
      }
    } catch (error) {
      this._trouble = troubleOf(error);
      this._told = error instanceof Error ? error.message : '';
      this._draw();
      throw error; // the poll waits longer
    }
  }

  private _onBroken(): void {
    void this.refresh();
  }

  private _onState(_: Stream, state: IState): void {
    this._heard = true;
    this._count++;
    this._take(state);
  }

  private _take(state: IState): void {
    this._state = state;
    this._trouble = null;
    this.history.take(state.processes, state.time);
    this._draw();
  }

  private _draw(): void {
    this._timer ??= window.setTimeout(() => {
      this._timer = undefined;
      this._changed.emit();
    }, DRAW_EVERY);
  }

  private readonly _poll: Poll;
  private readonly _changed = new Signal<this, void>(this);
  private _state: IState | null = null;
  private _trouble: Trouble | null = 'asking';
  private _told = '';
  private _watched = false;
  private _heard = false; // whether the stream has sent a state
  private _count = 0; // of states that the stream has sent
  private _interval = 1000;
  private _timer: number | undefined;
}

function troubleOf(error: unknown): Trouble {
  if (error instanceof ApiError) {
    if (error.status === 404) {
      return 'missing';
    }
    return error.status === 401 || error.status === 403
      ? 'forbidden'
      : 'failing';
  }
  return error instanceof ServerConnection.NetworkError
    ? 'disconnected'
    : 'failing';
}
