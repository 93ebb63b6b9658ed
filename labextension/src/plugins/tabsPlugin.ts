/** Makes plugins that open tabs: the services of JupyterLab that they need are the same. */

import {
  ILabShell,
  ILayoutRestorer,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { INbdist } from '../tokens';

/** What a plugin with tabs gets; a service is null where the application does not have it. */
export interface ITabServices {
  app: JupyterFrontEnd;
  nbdist: INbdist;
  /** Null in Notebook 7: there tabs open below the notebook. */
  labShell: ILabShell | null;
  restorer: ILayoutRestorer | null;
  palette: ICommandPalette | null;
}

export function tabsPlugin(
  id: string,
  description: string,
  addTabs: (services: ITabServices) => void
): JupyterFrontEndPlugin<void> {
  return {
    id,
    description,
    autoStart: true,
    requires: [INbdist],
    optional: [ILabShell, ILayoutRestorer, ICommandPalette],
    activate: (
      app: JupyterFrontEnd,
      nbdist: INbdist,
      labShell: ILabShell | null,
      restorer: ILayoutRestorer | null,
      palette: ICommandPalette | null
    ): void => {
      addTabs({ app, nbdist, labShell, restorer, palette });
    }
  };
}
