/** Provides the model of clusters and jobs; all other plugins read the model. */

import {
  JupyterLab,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Jobs } from '../metrics/data/follow';
import { Actions } from '../sidebar/acting/actions';
import { Api } from '../sidebar/server/api';
import { Model } from '../sidebar/server/model';
import { Settings } from '../sidebar/settings';
import { Stream } from '../sidebar/server/stream';
import { Targets } from '../sidebar/acting/targets';
import { Words } from '../sidebar/words';
import { INbdist } from '../tokens';

/** The plugin whose settings `schema/plugin.json` describes. */
const SETTINGS = 'nbdist:plugin';

export const modelPlugin: JupyterFrontEndPlugin<INbdist> = {
  id: SETTINGS,
  description: 'Holds the state of all clusters and jobs of this user.',
  autoStart: true,
  provides: INbdist,
  optional: [ISettingRegistry, ITranslator, JupyterLab.IInfo],
  activate: (
    app: JupyterFrontEnd,
    registry: ISettingRegistry | null,
    translator: ITranslator | null,
    info: JupyterLab.IInfo | null
  ): INbdist => {
    const { serverSettings } = app.serviceManager;
    const stream = new Stream(serverSettings);
    const model = new Model(
      new Api(serverSettings),
      stream,
      () => info?.isConnected ?? true
    );
    const settings = new Settings();
    const words = new Words((translator ?? nullTranslator).load('nbdist'));
    void registry?.load(SETTINGS).then(loaded => {
      const take = (): void => {
        settings.take(loaded);
        model.interval = 1000 * settings.pollSeconds;
        void model.refresh(); // this also redraws the views
      };
      loaded.changed.connect(take);
      take();
    });
    void app.started.then(() => {
      model.start();
    });
    const targets = new Targets(model, words);
    const actions = new Actions(model, words, targets);
    const jobs = new Jobs(stream);
    return { model, settings, words, targets, actions, jobs };
  }
};
