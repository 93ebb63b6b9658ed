/** Commands that run code in a notebook's kernel; the user always sees which code. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, Notification } from '@jupyterlab/apputils';
import { CodeCellModel } from '@jupyterlab/cells';
import { INotebookTracker, NotebookActions } from '@jupyterlab/notebook';
import { addIcon, runIcon } from '@jupyterlab/ui-components';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { askWish, startCluster } from '../sidebar/acting/start';
import { INbdist } from '../tokens';

export const notebooksPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:notebooks',
  description: 'Starts clusters and attaches jobs in notebooks.',
  autoStart: true,
  requires: [INbdist],
  optional: [INotebookTracker, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    tracker: INotebookTracker | null,
    palette: ICommandPalette | null
  ): void => {
    const { words, targets, settings } = nbdist;
    const trans = words.trans;
    const { commands, serviceManager } = app;

    commands.addCommand(CommandIDs.start, {
      label: trans.__('Start a Cluster…'),
      icon: addIcon,
      describedBy: describe(),
      execute: async () => {
        const { sessions } = serviceManager;
        await sessions.refreshRunning();
        const running = [...sessions.running()].filter(each => each.kernel);
        if (!running.length) {
          Notification.warning(
            trans.__('No kernel is running: open a notebook first.')
          );
          return;
        }
        const current =
          tracker?.currentWidget?.sessionContext.session?.kernel?.id ?? '';
        const wish = await askWish(running, current, settings.defaults, trans);
        if (wish) {
          await startCluster(wish, serviceManager, trans);
        }
      }
    });

    commands.addCommand(CommandIDs.attach, {
      label: trans.__('Attach a Detached Job to the Current Notebook…'),
      caption: trans.__('Add a cell that shows the job, and run it'),
      icon: runIcon,
      describedBy: describe('process', 'job'),
      isEnabled: args => args.job !== undefined || targets.detached.length > 0,
      execute: async args => {
        const title = trans.__('Attach which job?');
        const target = await targets.job(args, title, targets.detached);
        if (!target) {
          return;
        }
        const current = tracker?.currentWidget;
        if (!current) {
          Notification.warning(
            trans.__('Open a notebook to attach the job to.')
          );
          return;
        }
        const { content, sessionContext } = current;
        const loaded = content.widgets.some(
          ({ model }) =>
            model instanceof CodeCellModel &&
            model.executionCount !== null &&
            /^%(re)?load_ext nbdist/m.test(model.sharedModel.getSource())
        );
        NotebookActions.insertBelow(content);
        content.activeCell?.model.sharedModel.setSource(
          `${loaded ? '' : '%load_ext nbdist\n'}%dist attach ${target.job.id}`
        );
        app.shell.activateById(current.id);
        await NotebookActions.run(content, sessionContext);
      }
    });

    commands.addCommand(CommandIDs.notebook, {
      label: trans.__('Open the Notebook of a Cluster…'),
      describedBy: describe('path'),
      isEnabled: args => args.path !== undefined,
      execute: args =>
        commands.execute('docmanager:open', { path: args.path as string })
    });

    const category = trans.__('Clusters and Jobs (nbdist)');
    for (const command of [CommandIDs.start, CommandIDs.attach]) {
      palette?.addItem({ command, category });
    }
  }
};
