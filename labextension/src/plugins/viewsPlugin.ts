/** Tabs with the stacks of ranks, and with their logs. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  ICommandPalette,
  MainAreaWidget,
  WidgetTracker
} from '@jupyterlab/apputils';
import { textEditorIcon } from '@jupyterlab/ui-components';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { Follower } from '../sidebar/logs/follower';
import { stacksIcon } from '../sidebar/panel/icons';
import { LogView } from '../sidebar/logs/logView';
import { StacksView } from '../sidebar/logs/stacksView';
import { ended } from '../sidebar/server/records';
import type { ILogPlace } from '../sidebar/server/stream';
import { INbdist } from '../tokens';

export const viewsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:views',
  description: 'Shows stacks and logs of ranks in tabs.',
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
    const { words, targets, actions, model } = nbdist;
    const trans = words.trans;
    const logs = new WidgetTracker<MainAreaWidget<LogView>>({
      namespace: 'nbdist-logs'
    });
    const stacks = new Map<string, MainAreaWidget<StacksView>>();
    const places = new Map<string, ILogPlace>();

    /** Show a tab; a notebook's own page has room for others only below it. */
    const show = (tab: MainAreaWidget): void => {
      if (!tab.isAttached) {
        tab.toolbar.hide(); // the content has its own
        tab.toggleClass('jp-NbdistDown', !labShell);
        tab.content.node.setAttribute('aria-label', tab.title.caption);
        const beside =
          logs.find(each => each.isAttached) ?? [...stacks.values()].pop();
        const options = beside
          ? ({ mode: 'tab-after', ref: beside.id } as const)
          : ({ mode: 'split-bottom' } as const);
        app.shell.add(tab, labShell ? 'main' : 'down', options);
      }
      app.shell.activateById(tab.id);
    };

    app.commands.addCommand(CommandIDs.stacks, {
      label: trans.__('Show Stack Traces…'),
      caption: trans.__('Show where every rank is, also one that is stuck'),
      icon: stacksIcon,
      describedBy: describe('process', 'cluster', 'job'),
      isEnabled: args =>
        args.process !== undefined ||
        targets.clusters.length + targets.running.length > 0,
      execute: async args => {
        const target = await targets.either(
          args,
          trans.__('Stack traces of which cluster or job?')
        );
        if (!target) {
          return;
        }
        const whose =
          'cluster' in target ? `c${target.cluster.id}` : `j${target.job.id}`;
        const id = `nbdist-stacks-${target.process.id}-${whose}`;
        const open = stacks.get(id);
        if (open) {
          void open.content.ask();
          show(open);
          return;
        }
        const name = trans.__('Stack traces: %1', targets.name(target));
        const content = new StacksView(
          name,
          () => actions.stacks(target),
          trans
        );
        const tab = new MainAreaWidget({ content });
        tab.id = id;
        tab.title.label = trans.__(
          'Stack traces of %1',
          words.processName(target.process)
        );
        tab.title.caption = name;
        tab.title.icon = stacksIcon;
        show(tab);
        stacks.set(id, tab);
        tab.disposed.connect(() => {
          stacks.delete(id);
        });
      }
    });

    const openLog = async (place: ILogPlace): Promise<void> => {
      const { process, job, rank } = place;
      const id = `nbdist-log-${process}-${job}-${rank}`;
      const open = logs.find(tab => tab.id === id);
      if (open) {
        show(open);
        return;
      }
      const target = targets.find(place);
      const name = target
        ? trans.__('Rank %1 in %2', rank, targets.name(target))
        : trans.__('Rank %1 of job %2', rank, job);
      const follower = new Follower(place, model.api, model.stream);
      const over = (): boolean => {
        const job = targets.find(place)?.job;
        return !job || ended(job);
      };
      const tab = new MainAreaWidget({
        content: new LogView(name, follower, over, trans)
      });
      tab.id = id;
      tab.title.label = trans.__('Log of rank %1', rank);
      tab.title.caption = name;
      tab.title.icon = textEditorIcon;
      places.set(id, place);
      show(tab);
      await logs.add(tab);
    };

    app.commands.addCommand(CommandIDs.log, {
      label: trans.__('Open the Log of a Rank…'),
      caption: trans.__('Show the output of a rank in a job, live'),
      icon: textEditorIcon,
      describedBy: describe('process', 'job', 'rank'),
      isEnabled: args => args.process !== undefined || targets.jobs.length > 0,
      execute: async args => {
        const { process, job, rank } = args as Partial<ILogPlace>;
        if (process !== undefined && job !== undefined && rank !== undefined) {
          await openLog({ process, job, rank });
          return;
        }
        const title = trans.__('A log of which job?');
        const target = await targets.job(args, title, targets.jobs);
        const which = trans.__('Which rank’s log?');
        const chosen = target
          ? await targets.rank(args, which, target.job.ranks)
          : undefined;
        if (target && chosen !== undefined) {
          await openLog({
            process: target.process.id,
            job: target.job.id,
            rank: chosen
          });
        }
      }
    });

    const category = trans.__('Clusters and Jobs (nbdist)');
    for (const command of [CommandIDs.stacks, CommandIDs.log]) {
      palette?.addItem({ command, category });
    }
    void restorer?.restore(logs, {
      command: CommandIDs.log,
      args: tab => ({ ...places.get(tab.id) }),
      name: tab => tab.id
    });
  }
};
