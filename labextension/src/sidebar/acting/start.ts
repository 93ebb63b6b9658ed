/** Starts a cluster, only when the user asks for it, in a kernel that the user chooses. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type {
  Kernel,
  KernelMessage,
  ServiceManager,
  Session
} from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { complain, messageOf } from './actions';
import { startCode, type IWish } from './magic';
import type { IDefaults } from '../settings';

const BACKENDS = ['ddp', 'horovod', 'none'];

/** Ask which cluster to start; undefined if the user cancels. */
export async function askWish(
  sessions: Session.IModel[],
  current: string,
  defaults: IDefaults,
  trans: TranslationBundle
): Promise<IWish | undefined> {
  const body = new Form(sessions, current, defaults, trans);
  const answer = await showDialog({
    title: trans.__('Start a cluster'),
    body,
    focusNodeSelector: 'select',
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('Start') })
    ]
  });
  return answer.button.accept ? (answer.value ?? undefined) : undefined;
}

/** Start the cluster in its kernel, and report the result. */
export async function startCluster(
  wish: IWish,
  manager: ServiceManager.IManager,
  trans: TranslationBundle
): Promise<void> {
  const code = startCode(wish);
  const line = code.split('\n')[1];
  const id = Notification.emit(
    trans.__('Running in the kernel: %1', line),
    'in-progress',
    { autoClose: false }
  );
  try {
    const told = await run(wish.kernel, code, manager, trans);
    Notification.update({
      id,
      message: told || trans.__('The cluster is ready.'),
      type: 'success',
      autoClose: 8000
    });
  } catch (error) {
    Notification.dismiss(id);
    complain(trans.__('%1 failed', line), messageOf(error));
  }
}

/** Run code in a kernel, and return what the code prints. */
async function run(
  id: string,
  code: string,
  manager: ServiceManager.IManager,
  trans: TranslationBundle
): Promise<string> {
  const model = await manager.kernels.findById(id);
  if (!model) {
    throw new Error(trans.__('The kernel has ended'));
  }
  const kernel: Kernel.IKernelConnection = manager.kernels.connectTo({
    model,
    handleComms: false
  });
  try {
    const printed: string[] = [];
    const future = kernel.requestExecute({ code, store_history: false });
    future.onIOPub = (message: KernelMessage.IIOPubMessage) => {
      if (message.header.msg_type === 'stream') {
        printed.push((message as KernelMessage.IStreamMsg).content.text);
      }
    };
    const { content } = await future.done;
    if (content.status === 'error') {
      throw new Error(`${content.ename}: ${content.evalue}`);
    }
    return printed.join('').trim();
  } finally {
    kernel.dispose();
  }
}

/** The fields of the dialog. */
class Form extends Widget implements Dialog.IBodyWidget<IWish> {
  constructor(
    sessions: Session.IModel[],
    current: string,
    defaults: IDefaults,
    trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-NbdistForm');
    this._kernel = select(
      sessions.map(({ kernel, path }) => [kernel?.id ?? '', path])
    );
    this._kernel.value = current || this._kernel.value;
    this._np = input('number', defaults.np > 0 ? String(defaults.np) : '');
    this._np.min = '1';
    this._np.placeholder = trans.__('one per GPU, else 2');
    this._backend = select(BACKENDS.map(name => [name, name]));
    this._backend.value = defaults.backend;
    this._gpus = input('text', '');
    this._gpus.placeholder = trans.__('all, or e.g. 0,2-3');
    this._add(trans.__('Notebook'), this._kernel);
    this._add(trans.__('Ranks'), this._np);
    this._add(trans.__('Communication backend'), this._backend);
    this._add(trans.__('GPUs'), this._gpus);
    const note = document.createElement('p');
    note.textContent = trans.__(
      'Ranks run on the machine of the kernel and keep their variables between cells. For several hosts, launch ranks from a cell: %1',
      '%%distributed --launcher torchrun -H host:slots'
    );
    this.node.append(note);
  }

  getValue(): IWish {
    return {
      kernel: this._kernel.value,
      np: Math.max(0, Math.floor(Number(this._np.value) || 0)),
      backend: this._backend.value,
      gpus: this._gpus.value.replace(/[^\d,-]/g, '')
    };
  }

  private _add(label: string, field: HTMLElement): void {
    const line = document.createElement('label');
    const words = document.createElement('span');
    words.textContent = label;
    line.append(words, field);
    this.node.append(line);
  }

  private readonly _kernel: HTMLSelectElement;
  private readonly _np: HTMLInputElement;
  private readonly _backend: HTMLSelectElement;
  private readonly _gpus: HTMLInputElement;
}

function select(options: [string, string][]): HTMLSelectElement {
  const made = document.createElement('select');
  for (const [value, words] of options) {
    made.add(new Option(words, value));
  }
  return made;
}

function input(type: string, value: string): HTMLInputElement {
  const made = document.createElement('input');
  made.type = type;
  made.value = value;
  return made;
}
