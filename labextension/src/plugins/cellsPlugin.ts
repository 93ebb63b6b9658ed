/** Shows the cell that a job came from. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { describe } from '../sidebar/acting/args';
import { cellOf, showCell } from '../sidebar/acting/cells';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { pathOf } from '../sidebar/server/paths';
import type { IProcess } from '../sidebar/server/records';
import { INbdist } from '../tokens';

export const cellsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:cells',
  description: 'Goes from a job to its cell.',
  autoStart: true,
  requires: [INbdist, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    tracker: INotebookTracker
  ): void => {
    const { words, targets } = nbdist;
    const { trans } = words;
    const { commands, serviceManager, shell } = app;

    /** The notebook of a process, opened if need be; undefined if there is none. */
    const notebookOf = async (
      process: IProcess
    ): Promise<NotebookPanel | undefined> => {
      const path = pathOf(process, serviceManager.sessions);
      const open = tracker.find(
        ({ context, sessionContext }) =>
          (process.kernel &&
            sessionContext.session?.kernel?.id === process.kernel) ||
          context.path === path
      );
      if (!open && path) {
        await commands.execute('docmanager:open', { path });
      }
      const found =
        open ?? tracker.find(({ context }) => context.path === path);
      // A notebook that has just been opened has no cells yet.
      await found?.revealed;
      return found;
    };

    commands.addCommand(CommandIDs.cell, {
      label: trans.__('Go to the Cell of a Job…'),
      describedBy: describe('process', 'job', 'line'),
      isEnabled: args => args.job !== undefined || targets.jobs.length > 0,
      execute: async args => {
        const title = trans.__('Go to the cell of which job?');
        const target = await targets.job(args, title, targets.jobs);
        if (!target) {
          return;
        }
        const { process, job } = target;
        const panel = await notebookOf(process);
        const index = panel ? cellOf(panel, job) : -1;
        if (!panel || index < 0) {
          Notification.warning(
            trans.__(
              'The cell of job %1 is not in %2 any more.',
              words.jobAndCell(job),
              words.processName(process)
            )
          );
          return;
        }
        shell.activateById(panel.id);
        await showCell(panel, index, args.line as number | undefined);
      }
    });
  }
};
