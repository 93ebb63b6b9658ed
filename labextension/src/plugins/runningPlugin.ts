/** Lists clusters beside running kernels and terminals, with buttons to stop them. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { nbdistIcon } from '../sidebar/panel/icons';
import { INbdist } from '../tokens';

export const runningPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:running',
  description: 'Lists clusters under Running Terminals and Kernels.',
  autoStart: true,
  requires: [INbdist],
  optional: [IRunningSessionManagers],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    managers: IRunningSessionManagers | null
  ): void => {
    const { model, words, targets, actions } = nbdist;
    const trans = words.trans;
    managers?.add({
      name: trans.__('Clusters'),
      running: () =>
        targets.clusters.map(target => ({
          icon: () => nbdistIcon,
          label: () => targets.name(target),
          labelTitle: () =>
            trans.__('%1 on %2', target.cluster.backend, target.process.host),
          open: () => {
            void app.commands.execute(CommandIDs.show);
          },
          shutdown: () => {
            void actions.stop(target);
          }
        })),
      shutdownAll: () => {
        // JupyterLab has already asked for confirmation.
        targets.clusters.forEach(target => {
          void actions.stopNow(target);
        });
      },
      refreshRunning: () => {
        void model.refresh();
      },
      runningChanged: model.changed,
      shutdownLabel: trans.__('Stop'),
      shutdownAllLabel: trans.__('Stop All'),
      shutdownAllConfirmationText: trans.__(
        'Stop all clusters? The variables on their ranks are lost.'
      )
    });
  }
};
