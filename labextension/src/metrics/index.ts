/**
 * The ES module of the widget `nbdist.widgets.chart.Chart`.
 *
 * The kernel may be busy and is never asked: everything that is drawn is in the one trait `state`,
 * so a page that is opened late or reloaded shows what the others show.
 */

import './style.css';
import { make } from './dom';
import { decode } from './state';
import { View } from './view';

/** What anywidget hands us, as far as it is used here. */
interface IModel {
  get: (name: 'state') => DataView;
  on: (event: 'change:state', changed: () => void) => void;
  off: (event: 'change:state', changed: () => void) => void;
}

function render({ model, el }: { model: IModel; el: HTMLElement }): () => void {
  const view = new View();
  const trouble = make('p', { class: 'nbdist-trouble', role: 'alert' });
  trouble.hidden = true;
  el.append(view.node, trouble);
  let frame = 0;
  const show = (): void => {
    frame = 0;
    try {
      const state = decode(model.get('state'), null);
      if (state) {
        view.update(state);
      }
      trouble.hidden = true;
    } catch (error) {
      trouble.textContent =
        error instanceof Error ? error.message : String(error);
      trouble.hidden = false;
    }
  };
  // At most once a frame, and never while the page is hidden.
  const changed = (): void => {
    frame ||= requestAnimationFrame(show);
  };
  model.on('change:state', changed);
  show();
  return () => {
    cancelAnimationFrame(frame);
    model.off('change:state', changed);
    view.dispose();
    trouble.remove();
  };
}

export default { render };
