/** What nbdist adds to JupyterLab and Notebook 7. */

import { cellsPlugin } from './plugins/cellsPlugin';
import { chartsPlugin } from './plugins/chartsPlugin';
import { commandsPlugin } from './plugins/commandsPlugin';
import { metricsPlugin } from './plugins/metricsPlugin';
import { modelPlugin } from './plugins/modelPlugin';
import { notebooksPlugin } from './plugins/notebooksPlugin';
import { outputPlugin } from './plugins/outputPlugin';
import { panelPlugin } from './plugins/panelPlugin';
import { runningPlugin } from './plugins/runningPlugin';
import { statusPlugin } from './plugins/statusPlugin';
import { viewsPlugin } from './plugins/viewsPlugin';

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
