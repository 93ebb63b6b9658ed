/** What nbdist adds to JupyterLab and Notebook 7. */

import { modelPlugin } from './plugins/model';
import { panelPlugin } from './plugins/panel';

export default [modelPlugin, panelPlugin];
