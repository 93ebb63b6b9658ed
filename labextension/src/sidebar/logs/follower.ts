/** Reads the end of a rank's log, and follows the log as it grows. */

import type { IDisposable } from '@lumino/disposable';
import { Signal, type ISignal } from '@lumino/signaling';
import { messageOf } from '../acting/actions';
import type { Api } from '../server/api';
import { LogText } from './logText';
import type { ILogNews, ILogPlace, Stream } from '../server/stream';

/** How many bytes are read at first; the user may ask for earlier ones. */
const TAIL = 200_000;
/** Milliseconds between two requests while the stream is not connected. */
const ASK_EVERY = 2000;

export class Follower implements IDisposable {
  constructor(
    readonly place: ILogPlace,
    private readonly _api: Api,
    private readonly _stream: Stream
  ) {
    void this._begin(-TAIL);
    this._timer = window.setInterval(() => {
      if (!this._stream.live) {
        void this._ask();
      }
    }, ASK_EVERY);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** How many bytes of the log stand before the text that is shown. */
  get left(): number {
    return this._from;
  }

  /** Whether the text that was there at the beginning has been read. */
  get read(): boolean {
    return this._read;
  }

  /** Why the log cannot be read; '' if it can. */
  get trouble(): string {
    return this._trouble;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    window.clearInterval(this._timer);
    this._watch?.dispose();
    Signal.clearData(this);
  }

  /** Read the log from its beginning. */
  async readAll(): Promise<void> {
    this._watch?.dispose();
    this.text.clear();
    await this._begin(0);
  }

  readonly text = new LogText();

  private async _begin(from: number): Promise<void> {
    const { process, job, rank } = this.place;
    try {
      let part = await this._api.log(process, job, rank, from);
      this._from = part.from;
      this._take(part.text, part.to);
      while (part.to < part.size && part.text && !this._disposed) {
        part = await this._api.log(process, job, rank, part.to);
        this._take(part.text, part.to);
      }
      this._read = true;
      if (!this._disposed) {
        this._changed.emit();
        this._watch = this._stream.follow(this.place, this._to, news => {
          this._onNews(news);
        });
      }
    } catch (error) {
      this._fail(error);
    }
  }

  private async _ask(): Promise<void> {
    const { process, job, rank } = this.place;
    const from = this._to;
    try {
      const part = await this._api.log(process, job, rank, from);
      if (from === this._to && part.text) {
        this._take(part.text, part.to);
      }
    } catch (error) {
      this._fail(error);
    }
  }

  private _onNews(news: ILogNews): void {
    if (news.gone) {
      this._fail(new Error(news.gone));
    } else if (news.to > this._to) {
      this._take(news.text, news.to);
    }
  }

  private _take(text: string, to: number): void {
    this._trouble = '';
    this._to = to;
    this.text.add(text);
    this._changed.emit();
  }

  private _fail(error: unknown): void {
    this._trouble = messageOf(error);
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _timer: number;
  private _watch: IDisposable | undefined;
  private _trouble = '';
  private _from = 0;
  private _to = 0;
  private _read = false;
  private _disposed = false;
}
