/** The panel in the left sidebar. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { nbdistIcon } from '../sidebar/panel/icons';
import { NbdistPanel } from '../sidebar/panel/panel';
import { pathOf } from '../sidebar/server/paths';
import type { IProcess } from '../sidebar/server/records';
import { INbdist } from '../tokens';

/** The place for panels of third parties. */
const RANK = 600;

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:panel',
  description: 'Shows all clusters and jobs in the left sidebar.',
  autoStart: true,
  requires: [INbdist],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    tracker: INotebookTracker | null
  ): void => {
    const trans = nbdist.words.trans;
    const { sessions } = app.serviceManager;
    const isCurrent = (process: IProcess): boolean => {
      const notebook = tracker?.currentWidget;
      // The kernel of a detached job may have ended, but its notebook may be in front.
      return (
        !!notebook &&
        (process.kernel
          ? notebook.sessionContext.session?.kernel?.id === process.kernel
          : notebook.context.path === pathOf(process, sessions))
      );
    };
    const panel = new NbdistPanel({
      ...nbdist,
      commands: app.commands,
      pathsChanged: [
        sessions.runningChanged,
        ...(tracker ? [tracker.currentChanged] : [])
      ],
      pathOf: process => pathOf(process, sessions),
      isCurrent
    });
    app.shell.add(panel, 'left', { rank: RANK });
    restorer?.add(panel, panel.id);

    app.commands.addCommand(CommandIDs.show, {
      label: trans.__('Show Clusters and Jobs'),
      icon: nbdistIcon,
      describedBy: describe(),
      execute: () => {
        if (!labShell) {
          // In Notebook 7 `activateById` does not open the sidebar.
          void app.commands.execute('application:toggle-panel', {
            id: panel.id,
            side: 'left',
            title: panel.title.caption
          });
        }
        app.shell.activateById(panel.id);
        panel.takeFocus();
      }
    });
    palette?.addItem({
      command: CommandIDs.show,
      category: trans.__('Clusters and Jobs (nbdist)')
    });
  }
};
