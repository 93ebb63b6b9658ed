/** What nbdist adds to JupyterLab and Notebook 7. */

import { cellsPlugin } from './plugins/cells';
import { chartsPlugin } from './plugins/charts';
import { commandsPlugin } from './plugins/commands';
import { metricsPlugin } from './plugins/metrics';
import { modelPlugin } from './plugins/model';
import { notebooksPlugin } from './plugins/notebooks';
import { outputPlugin } from './plugins/output';
import { panelPlugin } from './plugins/panel';
import { runningPlugin } from './plugins/running';
import { statusPlugin } from './plugins/status';
import { viewsPlugin } from './plugins/views';

export default [
  modelPlugin,
  panelPlugin,
  commandsPlugin,
  cellsPlugin,
  viewsPlugin,
  metricsPlugin,
  chartsPlugin,
  outputPlugin,
  notebooksPlugin,
  statusPlugin,
  runningPlugin
];
