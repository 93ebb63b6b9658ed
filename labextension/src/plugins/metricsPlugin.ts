/** Shows the metrics of jobs in tabs, and gives views of metrics what JupyterLab can do for them. */

import { MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { fileName, saveFile } from '../metrics/elements/files';
import { page, type IJobName, type IOther } from '../metrics/host';
import { MetricsTab } from '../metrics/tab';
import { describe } from '../sidebar/acting/args';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { curvesIcon } from '../sidebar/panel/icons';
import { named, placeOf } from '../sidebar/server/jobNames';
import { tabsPlugin, type ITabServices } from './tabsPlugin';

type OpenTab = (job: IJobName) => Promise<void>;

export const metricsPlugin = tabsPlugin(
  'nbdist:metrics',
  'Shows metrics of jobs in tabs.',
  services => {
    const open = addMetricsTabs(services);
    addOpenCommand(services, open);
    servePage(services, open);
  }
);

/** Return the function that opens the tab of a job, or shows the tab that is open already. */
function addMetricsTabs({
  app,
  nbdist,
  labShell,
  restorer
}: ITabServices): OpenTab {
  const { words, jobs } = nbdist;
  const tabs = new WidgetTracker<MainAreaWidget<MetricsTab>>({
    namespace: 'nbdist-metrics'
  });
  void restorer?.restore(tabs, {
    command: CommandIDs.metrics,
    args: ({ content }) => ({ ...content.job }),
    name: tab => tab.id
  });
  return async job => {
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
    tab.title.label = words.trans.__('Metrics of job %1', job.job);
    tab.title.icon = curvesIcon;
    content.node.setAttribute('aria-label', tab.title.label);
    app.shell.add(tab, labShell ? 'main' : 'down');
    app.shell.activateById(id);
    await tabs.add(tab);
  };
}

function addOpenCommand(
  { app, nbdist, palette }: ITabServices,
  open: OpenTab
): void {
  const { words, targets } = nbdist;
  const trans = words.trans;
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
}

/** Do for views of metrics, in tabs and in outputs, what they cannot do by themselves. */
function servePage({ app, nbdist }: ITabServices, open: OpenTab): void {
  const { words, model, jobs } = nbdist;
  const others = (): IOther[] => named(model.state, words);
  page.host = {
    saveValues: (job, name) =>
      saveValues(job, name, app.serviceManager.serverSettings),
    openTab: ({ folder, job }) => void open({ folder, job }),
    others,
    follow: (job, changed) => {
      const watch = jobs.follow(job, ({ state }) => {
        if (state) {
          changed(state);
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

/** Save all values of a job that the server has, as a file; false if the server has none. */
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
    return false; // the view then saves the values that it has, and says so
  }
}
