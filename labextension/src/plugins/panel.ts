/** The panel in the left sidebar. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { PageConfig } from '@jupyterlab/coreutils';
import { describe } from '../sidebar/args';
import { CommandIDs } from '../sidebar/commandIds';
import { nbdistIcon } from '../sidebar/icons';
import { NbdistPanel } from '../sidebar/panel';
import { INbdist } from '../tokens';

/** Where third parties' panels stand. */
const RANK = 600;

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:panel',
  description: 'Shows all clusters and jobs in the left sidebar.',
  autoStart: true,
  requires: [INbdist],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null
  ): void => {
    const trans = nbdist.words.trans;
    const { sessions } = app.serviceManager;
    const panel = new NbdistPanel({
      ...nbdist,
      commands: app.commands,
      pathsChanged: sessions.runningChanged,
      pathOf: ({ kernel, notebook }) => {
        for (const session of sessions.running()) {
          if (session.kernel?.id === kernel) {
            return session.path;
          }
        }
        return below(PageConfig.getOption('serverRoot'), notebook);
      }
    });
    app.shell.add(panel, 'left', { rank: RANK });
    restorer?.add(panel, panel.id);

    app.commands.addCommand(CommandIDs.show, {
      label: trans.__('Show Clusters and Jobs'),
      icon: nbdistIcon,
      describedBy: describe(),
      execute: () => {
        if (!labShell) {
          // Notebook 7 opens its sidebar for its own panels alone.
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

/** A file's path below the server's root, which may be told as `~/work`; '' if it is not there. */
function below(root: string, file: string): string {
  const start = `${root.replace(/^~|\/+$/g, '')}/`;
  const at = root ? file.indexOf(start) : -1;
  return at < 0 ? '' : file.slice(at + start.length);
}
