/** Gives charts their first options from JupyterLab's settings, and keeps pinned charts there. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IOptions } from '../metrics/data/options';
import { preferences } from '../metrics/data/preferences';

/** The plugin whose settings `schema/plugin.json` describes. */
const SETTINGS = 'nbdist:plugin';

export const chartsPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:charts',
  description: 'Applies the settings for charts of metrics.',
  autoStart: true,
  requires: [ISettingRegistry],
  activate: (_: JupyterFrontEnd, registry: ISettingRegistry): void => {
    void registry.load(SETTINGS).then(settings => {
      const take = (): void => {
        const { charts, pinned } = settings.composite as {
          charts?: Partial<IOptions>;
          pinned?: string[];
        };
        preferences.take(charts ?? {}, pinned ?? []);
      };
      preferences.keep = pinned => {
        void settings.set('pinned', pinned);
      };
      settings.changed.connect(take);
      take();
    });
  }
};
