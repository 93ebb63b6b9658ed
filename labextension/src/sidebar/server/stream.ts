/** The websocket that brings changes of state, log output and metrics; it reconnects by itself. */

import { URLExt } from '@jupyterlab/coreutils';
import type { ServerConnection } from '@jupyterlab/services';
import { DisposableDelegate, type IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { state, type IState } from './records';

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;

/** A log that is followed. */
export interface ILogPlace {
  process: string;
  job: string;
  rank: number;
}

/** What was added to a log. */
export interface ILogNews extends ILogPlace {
  text: string;
  /** Bytes of the log up to the end of `text`. */
  to: number;
  /** Why the log cannot be followed any more. */
  gone?: string;
}

/** Names a job whose metrics are followed. */
export interface IJobPlace {
  /** The name of the folder with the job's files. */
  folder: string;
  job: string;
}

interface IMessage {
  state?: Partial<IState>;
  /** A job that the server does not know. */
  metrics?: IJobPlace;
  log?: ILogNews;
}

interface IWatch extends ILogPlace {
  from: number;
  told: (news: ILogNews) => void;
}

interface IMetricsWatch extends IJobPlace {
  told: (frame: DataView | null) => void;
}

export class Stream implements IDisposable {
  constructor(private readonly _settings: ServerConnection.ISettings) {}

  /** Emitted with the new state at every change. */
  get state(): ISignal<this, IState> {
    return this._state;
  }

  /** Emitted when the connection has broken. */
  get broken(): ISignal<this, void> {
    return this._broken;
  }

  /** Whether the connection is open; if not, the caller has to poll. */
  get live(): boolean {
    return this._live;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (!this._disposed) {
      this._disposed = true;
      this._close();
      Signal.clearData(this);
    }
  }

  /** Whether the state is wanted. The connection is open only while something is wanted. */
  set wanted(wanted: boolean) {
    this._wanted = wanted;
    if (this._live) {
      this._send(wanted ? { watch: 'state' } : { unwatch: 'state' });
    }
    this._settle();
  }

  /** Call `told` with what is added to a log after byte `from`, until the result is disposed. */
  follow(
    place: ILogPlace,
    from: number,
    told: (news: ILogNews) => void
  ): IDisposable {
    const watch = { ...place, from, told };
    this._watches.add(watch);
    if (this._live) {
      this._watchLog(watch);
    }
    this._settle();
    return new DisposableDelegate(() => {
      if (this._watches.delete(watch) && this._live) {
        const { process, job, rank } = place;
        this._send({ unwatch: 'log', process, job, rank });
      }
      this._settle();
    });
  }

  /**
   * Receive a job's metrics until the result is disposed: a whole frame, then changes.
   *
   * After the connection was broken, a whole frame comes again. A job can be followed only once.
   *
   * @param told Called with each frame, and with null if the server knows nothing of the job.
   */
  followMetrics(
    { folder, job }: IJobPlace,
    told: (frame: DataView | null) => void
  ): IDisposable {
    const watch = { folder, job, told };
    this._metrics.add(watch);
    if (this._live) {
      this._send({ watch: 'metrics', folder, job });
    }
    this._settle();
    return new DisposableDelegate(() => {
      if (this._metrics.delete(watch) && this._live) {
        this._send({ unwatch: 'metrics', folder, job });
      }
      this._settle();
    });
  }

  /** Open or close the connection, as needed. */
  private _settle(): void {
    const followed = this._watches.size + this._metrics.size > 0;
    const needed = !this._disposed && (this._wanted || followed);
    if (needed && !this._socket && this._timer === undefined) {
      this._open();
    } else if (!needed) {
      this._close();
    }
  }

  private _open(): void {
    const { wsUrl, token, appendToken, WebSocket } = this._settings;
    let url = URLExt.join(wsUrl, 'nbdist/api/stream');
    if (appendToken && token) {
      url += URLExt.objectToQueryString({ token });
    }
    const socket = new WebSocket(url);
    socket.binaryType = 'arraybuffer';
    this._socket = socket;
    socket.onopen = () => {
      this._live = true;
      if (this._wanted) {
        this._send({ watch: 'state' });
      }
      this._watches.forEach(watch => {
        this._watchLog(watch);
      });
      this._metrics.forEach(({ folder, job }) => {
        this._send({ watch: 'metrics', folder, job });
      });
    };
    socket.onmessage = (event: MessageEvent<string | ArrayBuffer>) => {
      this._wait = FIRST_WAIT;
      if (typeof event.data === 'string') {
        this._take(JSON.parse(event.data) as IMessage);
      } else {
        this._takeFrame(event.data);
      }
    };
    socket.onclose = () => {
      this._live = false;
      this._socket = null;
      this._timer = window.setTimeout(() => {
        this._timer = undefined;
        this._settle();
      }, this._wait);
      this._wait = Math.min(2 * this._wait, LONGEST_WAIT);
      this._broken.emit();
    };
  }

  private _close(): void {
    window.clearTimeout(this._timer);
    this._timer = undefined;
    this._live = false;
    if (this._socket) {
      this._socket.onopen = null;
      this._socket.onmessage = null;
      this._socket.onclose = null;
      this._socket.close();
      this._socket = null;
    }
  }

  private _take(message: IMessage): void {
    if (message.state) {
      this._state.emit(state(message.state));
    }
    if (message.metrics) {
      this._tellMetrics(message.metrics, null);
    }
    const log = message.log;
    if (log) {
      for (const watch of this._watches) {
        if (
          watch.process === log.process &&
          watch.job === log.job &&
          watch.rank === log.rank
        ) {
          watch.from = log.to || watch.from;
          watch.told(log);
        }
      }
    }
  }

  /** Take a message with a frame: the length of a JSON, the JSON that names the job, the frame. */
  private _takeFrame(data: ArrayBuffer): void {
    const length = new DataView(data).getUint32(0, true);
    const text = new TextDecoder().decode(new Uint8Array(data, 4, length));
    const frame = new DataView(data, 4 + length);
    this._tellMetrics(JSON.parse(text) as IJobPlace, frame);
  }

  private _tellMetrics(place: IJobPlace, frame: DataView | null): void {
    for (const watch of this._metrics) {
      if (watch.folder === place.folder && watch.job === place.job) {
        watch.told(frame);
      }
    }
  }

  private _watchLog({ process, job, rank, from }: IWatch): void {
    this._send({ watch: 'log', process, job, rank, from });
  }

  private _send(message: object): void {
    this._socket?.send(JSON.stringify(message));
  }

  private readonly _state = new Signal<this, IState>(this);
  private readonly _broken = new Signal<this, void>(this);
  private readonly _watches = new Set<IWatch>();
  private readonly _metrics = new Set<IMetricsWatch>();
  private _socket: WebSocket | null = null;
  private _live = false;
  private _wanted = false;
  private _disposed = false;
  private _timer: number | undefined;
  private _wait = FIRST_WAIT;
}
