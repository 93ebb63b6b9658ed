/** Tabs with the metrics of jobs, and what views of metrics can do in JupyterLab. */

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
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { fileName, saveFile } from '../metrics/elements/files';
import { page, type IJobName, type IOther } from '../metrics/host';
import { MetricsTab } from '../metrics/tab';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { curvesIcon } from '../sidebar/panel/icons';
import { named, placeOf } from '../sidebar/server/jobNames';
import { INbdist } from '../tokens';

export const metricsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:metrics',
  description: 'Shows metrics of jobs in tabs.',
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
    const { words, targets, model, jobs } = nbdist;
    const trans = words.trans;
    const tabs = new WidgetTracker<MainAreaWidget<MetricsTab>>({
      namespace: 'nbdist-metrics'
    });
    const others = (): IOther[] => named(model.state, words);

    const open = async (job: IJobName): Promise<void> => {
      const id = `nbdist-metrics-${job.folder}-${job.job}`;
      const known = tabs.find(tab => tab.id === id);
      if (known) {
        app.shell.activateById(id);
        return;
      }
      const content = new MetricsTab(job, jobs);
      const tab = new MainAreaWidget({ content });
      tab.toolbar.hide(); // the content has its own
      tab.id = id;
      tab.title.label = trans.__('Metrics of job %1', job.job);
      tab.title.icon = curvesIcon;
      content.node.setAttribute('aria-label', tab.title.label);
      app.shell.add(tab, labShell ? 'main' : 'down');
      app.shell.activateById(id);
      await tabs.add(tab);
    };

    app.commands.addCommand(CommandIDs.metrics, {
      label: trans.__('Open the Metrics of a Job…'),
      caption: trans.__('All curves of a job, live'),
      icon: curvesIcon,
      describedBy: describe('process', 'job'),
      isEnabled: args => args.job !== undefined || targets.jobs.length > 0,
      execute: async args => {
        const { folder, job } = args as Partial<IJobName>;
        if (folder !== undefined && job !== undefined) {
          await open({ folder, job });
          return;
        }
        const title = trans.__('The metrics of which job?');
        const target = await targets.job(args, title, targets.jobs);
        if (target) {
          await open(placeOf(target.job));
        }
      }
    });
    palette?.addItem({
      command: CommandIDs.metrics,
      category: trans.__('Clusters and Jobs (nbdist)')
    });
    void restorer?.restore(tabs, {
      command: CommandIDs.metrics,
      args: ({ content }) => ({ ...content.job }),
      name: tab => tab.id
    });

    page.host = {
      saveValues: (job, name) =>
        saveValues(job, name, app.serviceManager.serverSettings),
      openTab: ({ folder, job }) => void open({ folder, job }),
      others,
      follow: (job, told) => {
        const watch = jobs.follow(job, ({ state }) => {
          if (state) {
            told(state);
          }
        });
        return () => {
          watch.dispose();
        };
      }
    };
    let known = '';
    model.changed.connect(() => {
      const now = JSON.stringify(others());
      if (now !== known) {
        known = now;
        page.tell();
      }
    });
  }
};

/** All values of a job as the server has them; false if it does not. */
async function saveValues(
  { folder, job }: IJobName,
  name: string,
  settings: ServerConnection.ISettings
): Promise<boolean> {
  const url = URLExt.join(
    settings.baseUrl,
    'nbdist/api/metrics',
    encodeURIComponent(folder),
    `${encodeURIComponent(job)}.csv`
  );
  try {
    const answer = await ServerConnection.makeRequest(url, {}, settings);
    if (answer.ok) {
      saveFile(await answer.blob(), `${fileName('metrics', name)}.csv`);
    }
    return answer.ok;
  } catch {
    return false; // what the page has is saved instead, and that is said
  }
}
