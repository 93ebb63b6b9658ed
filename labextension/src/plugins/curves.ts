/** A page that was reloaded shows the curves of jobs that run, also where ipywidgets gave them up. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';

type Registry = NotebookPanel['content']['rendermime'];
type Renderer = ReturnType<Registry['createRenderer']>;

const WIDGET = 'application/vnd.jupyter.widget-view+json';
const GIVEN_UP = 'Error displaying widget: model not found';

export const curvesPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:curves',
  description: 'Has curves of jobs that run survive a reload of the page.',
  autoStart: true,
  optional: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker | null): void => {
    tracker?.widgetAdded.connect((_sender, panel) => {
      lookAgain(panel.content.rendermime);
    });
  }
};

/**
 * Have a notebook's widgets of ours looked for once more when ipywidgets has given up.
 *
 * It looks for a model for two seconds, now and then, without a last look. If the models come just
 * then, it says that there is none, and leaves it at that (ipywidgets 8.1.9, its issue 4026). There
 * is no sign of it but its words; without them nothing is done.
 */
function lookAgain(registry: Registry): void {
  const create = registry.createRenderer.bind(registry);
  registry.createRenderer = mimeType => {
    const renderer = create(mimeType);
    return mimeType === WIDGET ? lookingAgain(renderer) : renderer;
  };
}

function lookingAgain(renderer: Renderer): Renderer {
  const render = renderer.renderModel.bind(renderer);
  renderer.renderModel = async model => {
    await render(model);
    const ours = model.metadata.nbdist === 'metrics';
    if (ours && renderer.node.textContent === GIVEN_UP) {
      renderer.removeClass('jupyter-widgets');
      await render(model);
    }
  };
  return renderer;
}
