/** The panel in the left sidebar. */

import {
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { NbdistPanel } from '../sidebar/panel';
import { INbdist } from '../tokens';

/** Where third parties' panels stand. */
const RANK = 600;

export const panelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:panel',
  description: 'Shows all clusters and jobs in the left sidebar.',
  autoStart: true,
  requires: [INbdist],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    restorer: ILayoutRestorer | null
  ): void => {
    const { sessions } = app.serviceManager;
    const panel = new NbdistPanel({
      ...nbdist,
      commands: app.commands,
      pathsChanged: sessions.runningChanged,
      pathOf: kernel => {
        for (const { kernel: its, path } of sessions.running()) {
          if (its && its.id === kernel) {
            return path;
          }
        }
        return '';
      }
    });
    app.shell.add(panel, 'left', { rank: RANK });
    restorer?.add(panel, panel.id);
  }
};
