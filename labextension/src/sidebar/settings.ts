/** The settings of the sidebar; see `schema/plugin.json`. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';

/** The defaults for a new cluster. */
export interface IDefaults {
  /** The number of ranks; 0 means one for each GPU, or two without GPUs. */
  np: number;
  backend: string;
}

export class Settings {
  /** Seconds between two requests to the server. */
  pollSeconds = 1;
  showGraphs = true;
  showMetrics = true;
  showEnded = true;
  showStatusBar = true;
  defaults: IDefaults = { np: 0, backend: 'ddp' };

  take(settings: ISettingRegistry.ISettings): void {
    const chosen = settings.composite as Partial<Settings>;
    this.pollSeconds = chosen.pollSeconds ?? 1;
    this.showGraphs = chosen.showGraphs ?? true;
    this.showMetrics = chosen.showMetrics ?? true;
    this.showEnded = chosen.showEnded ?? true;
    this.showStatusBar = chosen.showStatusBar ?? true;
    this.defaults = { ...this.defaults, ...chosen.defaults };
  }
}
