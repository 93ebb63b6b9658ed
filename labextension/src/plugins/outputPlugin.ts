/** Draws the output of jobs in notebooks. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { metricsFactory } from '../metrics/output';
import { INbdist } from '../tokens';

/** Preferred to HTML and pictures, which are for front ends without this extension. */
const RANK = 0;

export const outputPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:output',
  description: 'Draws the metrics of jobs in notebooks.',
  autoStart: true,
  requires: [IRenderMimeRegistry, INbdist],
  activate: (
    _: JupyterFrontEnd,
    registry: IRenderMimeRegistry,
    nbdist: INbdist
  ): void => {
    registry.addFactory(metricsFactory(nbdist.jobs), RANK);
  }
};
