/** Shows the stacks of ranks, and their logs, in tabs. */

import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { textEditorIcon } from '@jupyterlab/ui-components';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import type { Target } from '../sidebar/acting/targets';
import { Follower } from '../sidebar/logs/follower';
import { stacksIcon } from '../sidebar/panel/icons';
import { LogView } from '../sidebar/logs/logView';
import { StacksView } from '../sidebar/logs/stacksView';
import { ended } from '../sidebar/server/records';
import type { ILogPlace } from '../sidebar/server/stream';
import { tabsPlugin, type ITabServices } from './tabsPlugin';

export const viewsPlugin = tabsPlugin(
  'nbdist:views',
  'Shows stacks and logs of ranks in tabs.',
  services => {
    const views = new ViewTabs(services);
    views.addStacksCommand();
    views.addLogCommand();
  }
);

/** The tabs of both kinds: a new one opens beside one that is open already. */
class ViewTabs {
  constructor(private readonly _services: ITabServices) {
    this._trans = _services.nbdist.words.trans;
    void _services.restorer?.restore(this._logs, {
      command: CommandIDs.log,
      args: tab => ({ ...this._places.get(tab.id) }),
      name: tab => tab.id
    });
  }

  addStacksCommand(): void {
    const trans = this._trans;
    const { targets } = this._services.nbdist;
    this._services.app.commands.addCommand(CommandIDs.stacks, {
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
        if (target) {
          this._showStacks(target);
        }
      }
    });
    this._addToPalette(CommandIDs.stacks);
  }

  addLogCommand(): void {
    const trans = this._trans;
    const { targets } = this._services.nbdist;
    this._services.app.commands.addCommand(CommandIDs.log, {
      label: trans.__('Open the Log of a Rank…'),
      caption: trans.__('Show the output of a rank in a job, live'),
      icon: textEditorIcon,
      describedBy: describe('process', 'job', 'rank'),
      isEnabled: args => args.process !== undefined || targets.jobs.length > 0,
      execute: async args => {
        const { process, job, rank } = args as Partial<ILogPlace>;
        if (process !== undefined && job !== undefined && rank !== undefined) {
          await this._showLog({ process, job, rank });
          return;
        }
        const title = trans.__('A log of which job?');
        const target = await targets.job(args, title, targets.jobs);
        const which = trans.__('Which rank’s log?');
        const chosen = target
          ? await targets.rank(args, which, target.job.ranks)
          : undefined;
        if (target && chosen !== undefined) {
          await this._showLog({
            process: target.process.id,
            job: target.job.id,
            rank: chosen
          });
        }
      }
    });
    this._addToPalette(CommandIDs.log);
  }

  private _showStacks(target: Target): void {
    const trans = this._trans;
    const { words, targets, actions } = this._services.nbdist;
    const whose =
      'cluster' in target ? `c${target.cluster.id}` : `j${target.job.id}`;
    const id = `nbdist-stacks-${target.process.id}-${whose}`;
    const open = this._stacks.get(id);
    if (open) {
      void open.content.ask();
      this._show(open);
      return;
    }
    const name = trans.__('Stack traces: %1', targets.name(target));
    const content = new StacksView(name, () => actions.stacks(target), trans);
    const tab = new MainAreaWidget({ content });
    tab.id = id;
    tab.title.label = trans.__(
      'Stack traces of %1',
      words.processName(target.process)
    );
    tab.title.caption = name;
    tab.title.icon = stacksIcon;
    this._show(tab);
    this._stacks.set(id, tab);
    tab.disposed.connect(() => {
      this._stacks.delete(id);
    });
  }

  private async _showLog(place: ILogPlace): Promise<void> {
    const trans = this._trans;
    const { targets, model } = this._services.nbdist;
    const { process, job, rank } = place;
    const id = `nbdist-log-${process}-${job}-${rank}`;
    const open = this._logs.find(tab => tab.id === id);
    if (open) {
      this._show(open);
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
    this._places.set(id, place);
    this._show(tab);
    await this._logs.add(tab);
  }

  /** Show a tab; on the page of a single notebook there is room only below the notebook. */
  private _show(tab: MainAreaWidget): void {
    const { app, labShell } = this._services;
    if (!tab.isAttached) {
      tab.toolbar.hide(); // the content has its own
      tab.toggleClass('jp-NbdistDown', !labShell);
      tab.content.node.setAttribute('aria-label', tab.title.caption);
      const beside =
        this._logs.find(each => each.isAttached) ??
        [...this._stacks.values()].pop();
      const options = beside
        ? ({ mode: 'tab-after', ref: beside.id } as const)
        : ({ mode: 'split-bottom' } as const);
      app.shell.add(tab, labShell ? 'main' : 'down', options);
    }
    app.shell.activateById(tab.id);
  }

  private _addToPalette(command: string): void {
    this._services.palette?.addItem({
      command,
      category: this._trans.__('Clusters and Jobs (nbdist)')
    });
  }

  private readonly _trans: TranslationBundle;
  private readonly _logs = new WidgetTracker<MainAreaWidget<LogView>>({
    namespace: 'nbdist-logs'
  });
  private readonly _stacks = new Map<string, MainAreaWidget<StacksView>>();
  /** The places of the logs, by the id of their tab. */
  private readonly _places = new Map<string, ILogPlace>();
}
