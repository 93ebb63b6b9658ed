/**
 * The ES module of the widget `nbdist.widgets.chart.Chart`, for front ends without this extension.
 *
 * The kernel may be busy and is never asked. The one trait `state` has everything that is drawn, so
 * a page that is opened late or reloaded shows the same as other pages.
 */

import './style.css';
import { Drawn } from './view/drawn';
import { decode } from './data/state';

/** The part of anywidget's model that is used here. */
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
