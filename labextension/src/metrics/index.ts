/**
 * The ES module of the widget `nbdist.widgets.chart.Chart`, for front ends without our extension.
 *
 * The kernel may be busy and is never asked: everything that is drawn is in the one trait `state`,
 * so a page that is opened late or reloaded shows what the others show.
 */

import './style.css';
import { Drawn } from './view/drawn';
import { decode } from './data/state';

/** What anywidget hands us, as far as it is used here. */
interface IModel {
  get: (name: 'state') => DataView;
  on: (event: 'change:state', changed: () => void) => void;
  off: (event: 'change:state', changed: () => void) => void;
}

function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const drawn = new Drawn();
  el.append(drawn.node);
  const changed = (): void => {
    try {
      const state = decode(model.get('state'), null);
      if (state) {
        drawn.show(state);
      }
    } catch (error) {
      drawn.complain(error instanceof Error ? error.message : String(error));
    }
  };
  model.on('change:state', changed);
  changed();
  return () => {
    model.off('change:state', changed);
    drawn.dispose();
  };
}

export default { render };
