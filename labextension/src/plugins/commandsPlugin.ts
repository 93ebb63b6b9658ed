/** Commands on clusters and jobs. A command without arguments asks for its cluster or job. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import {
  clearIcon,
  copyIcon,
  refreshIcon,
  stopIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import type { IClusterTarget } from '../sidebar/acting/targets';
import { INbdist } from '../tokens';

export const commandsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:commands',
  description: 'Adds commands that steer clusters and jobs.',
  autoStart: true,
  requires: [INbdist],
  optional: [ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    palette: ICommandPalette | null
  ): void => {
    const { words, targets, actions, model } = nbdist;
    const trans = words.trans;
    const { commands } = app;

    /** Find the cluster of a command: it is named in the arguments, or the user is asked. */
    const ofCluster = (
      title: string,
      act: (
        target: IClusterTarget,
        args: ReadonlyPartialJSONObject
      ) => Promise<void> | void
    ): Pick<CommandRegistry.ICommandOptions, 'isEnabled' | 'execute'> => ({
      isEnabled: args =>
        args.cluster !== undefined || targets.clusters.length > 0,
      execute: async args => {
        const target = await targets.cluster(args, title);
        if (target) {
          await act(target, args);
        }
      }
    });

    commands.addCommand(CommandIDs.interrupt, {
      label: trans.__('Interrupt a Job…'),
      caption: trans.__(
        'Interrupt a job on its ranks; the kernel keeps running'
      ),
      icon: stopIcon,
      describedBy: describe('process', 'job'),
      isEnabled: args => args.job !== undefined || targets.running.length > 0,
      execute: async args => {
        const title = trans.__('Interrupt which job?');
        const target = await targets.job(args, title, targets.running);
        if (target) {
          await actions.interrupt(target);
        }
      }
    });
    commands.addCommand(CommandIDs.stop, {
      label: trans.__('Stop a Cluster…'),
      caption: trans.__(
        'Stop a cluster, also one whose kernel does not respond'
      ),
      describedBy: describe('process', 'cluster'),
      ...ofCluster(trans.__('Stop which cluster?'), target =>
        actions.stop(target)
      )
    });
    commands.addCommand(CommandIDs.restart, {
      label: trans.__('Restart a Rank…'),
      caption: trans.__('Replace the process of a rank'),
      icon: refreshIcon,
      describedBy: describe('process', 'cluster', 'rank'),
      ...ofCluster(
        trans.__('Restart a rank of which cluster?'),
        async (target, args) => {
          const title = trans.__('Restart which rank?');
          const rank = await targets.rank(args, title, target.cluster.ranks);
          if (rank !== undefined) {
            await actions.restart(target, rank);
          }
        }
      )
    });
    commands.addCommand(CommandIDs.snippet, {
      label: trans.__('Copy the First Line of a Cell for a Cluster…'),
      icon: copyIcon,
      describedBy: describe('process', 'cluster'),
      ...ofCluster(trans.__('For which cluster?'), target => {
        actions.copySnippet(target);
      })
    });
    commands.addCommand(CommandIDs.clean, {
      label: trans.__('Clear Finished Jobs…'),
      icon: clearIcon,
      describedBy: describe(),
      isEnabled: () => targets.processes.some(({ alive }) => !alive),
      execute: () => actions.clean()
    });
    commands.addCommand(CommandIDs.refresh, {
      label: trans.__('Refresh'),
      icon: refreshIcon,
      describedBy: describe(),
      execute: () => model.refresh()
    });

    const category = trans.__('Clusters and Jobs (nbdist)');
    for (const command of [
      CommandIDs.interrupt,
      CommandIDs.stop,
      CommandIDs.restart,
      CommandIDs.snippet,
      CommandIDs.clean,
      CommandIDs.refresh
    ]) {
      palette?.addItem({ command, category });
    }
    const notify = (): void => {
      commands.notifyCommandChanged();
    };
    let known = '';
    model.changed.connect(() => {
      // Commands become possible or impossible only when one of these counts changes.
      const now = [
        targets.clusters.length,
        targets.running.length,
        targets.processes.filter(({ alive }) => alive).length,
        targets.detached.length
      ].join();
      if (now !== known) {
        known = now;
        notify();
      }
    });
  }
};
