/**
 * The output of a job in a notebook: its metrics, in JupyterLab and Notebook 7.
 *
 * The output holds the job's name and a whole state: the first state while the job runs, and the
 * final one after the kernel has reported the end. Until then the page follows the job at the
 * server, which reads the job's files; the kernel is never asked. If the kernel has died, the page
 * writes the server's last state into the notebook, so the curves are saved with the notebook.
 */

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { IDisposable } from '@lumino/disposable';
import { Widget } from '@lumino/widgets';
import { Drawn } from './view/drawn';
import { isOver, type Followed, type Jobs } from './data/follow';
import {
  decode,
  encode,
  fromBase64,
  toBase64,
  type IState
} from './data/state';
import { inHtml, inText } from './view/textSummary';

export const MIME = 'application/vnd.nbdist.metrics+json';

/** The data of an output in the notebook. */
interface IKept {
  version: number;
  folder: string;
  job: string;
  /** A whole frame in base64; '' if there was no state yet. */
  state: string;
}

/**
 * How long the page waits before it writes the end of a job into the notebook, in milliseconds.
 * Normally the kernel does that, but a page that was reloaded may miss it. And some ranks of a dead
 * kernel may run on for a moment.
 */
const PATIENCE = 3000;

export class MetricsOutput extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly _jobs: Jobs) {
    super();
    this.addClass('nbdist-output');
    this.node.append(this._drawn.node);
  }

  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this._model = model;
    const kept = model.data[MIME] as unknown as IKept;
    if (kept.state === this._kept?.state && kept.job === this._kept.job) {
      return Promise.resolve(); // this page has written it itself, or it has not changed
    }
    this._kept = kept;
    this._saved = this._read(kept);
    if (this._saved) {
      this._drawn.show(this._saved);
    }
    const { folder, job } = kept;
    // A job that counts as lost may only have been silent, and may come back.
    const goesOn = !isOver(this._saved) || this._saved?.state === 'lost';
    if (!goesOn || `${folder}/${job}` !== this._place) {
      this._stop();
    }
    if (goesOn && !this._watch) {
      this._place = `${folder}/${job}`;
      this._watch = this._jobs.follow({ folder, job }, followed => {
        this._onNews(followed);
      });
    }
    return Promise.resolve();
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._stop();
      this._drawn.dispose();
      super.dispose();
    }
  }

  private _read({ state }: IKept): IState | null {
    try {
      return state ? decode(fromBase64(state), null) : null;
    } catch (error) {
      this._drawn.complain(
        error instanceof Error ? error.message : String(error)
      );
      return null;
    }
  }

  private _onNews(followed: Followed): void {
    const { state, unknown, trouble } = followed;
    if (unknown) {
      const known = state ?? this._saved;
      if (known) {
        this._drawn.show(asLastKnown(known));
      } else {
        this._drawn.complain('The server has no data of this job any more.');
      }
    } else if (state) {
      this._drawn.show(state);
      window.clearTimeout(this._timer);
      if (isOver(state)) {
        this._keepSoon(state);
      }
    }
    if (trouble) {
      this._drawn.complain(trouble);
    }
  }

  /** Write the end of the job into the notebook soon, unless the kernel does so before. */
  private _keepSoon(state: IState): void {
    window.clearTimeout(this._timer);
    this._timer = window.setTimeout(() => {
      if (state.state !== 'lost') {
        this._stop();
      }
      const { version, folder, job } = this._kept!;
      const told = toBase64(encode(state));
      if (told === this._kept!.state) {
        return; // a notebook must not change because it was opened
      }
      this._kept = { version, folder, job, state: told };
      this._saved = state;
      this._model!.setData({
        data: {
          ...this._model!.data,
          [MIME]: { ...this._kept },
          'text/plain': inText(state),
          'text/html': inHtml(state)
        }
      });
    }, PATIENCE);
  }

  private _stop(): void {
    window.clearTimeout(this._timer);
    this._watch?.dispose();
    this._watch = null;
  }

  private readonly _drawn = new Drawn();
  private _model: IRenderMime.IMimeModel | null = null;
  private _kept: IKept | null = null;
  private _saved: IState | null = null;
  private _place = '';
  private _watch: IDisposable | null = null;
  private _timer: number | undefined;
}

/** Mark a state as the last known one; rates and remaining times, which are outdated, are removed. */
export function asLastKnown(state: IState): IState {
  if (isOver(state)) {
    return state; // how it ended is known
  }
  return {
    ...state,
    state: 'unknown',
    straggler: '',
    bars: state.bars.map(bar => ({
      ...bar,
      rate: null,
      samples: null,
      left: null
    })),
    note: ['Showing last known state', state.note].filter(Boolean).join('. ')
  };
}

/** Makes outputs. They run no code, so notebooks that are not trusted show them, too. */
export function metricsFactory(jobs: Jobs): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [MIME],
    createRenderer: () => new MetricsOutput(jobs)
  };
}
