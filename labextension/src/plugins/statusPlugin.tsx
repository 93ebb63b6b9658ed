/** Shows in the status bar how many ranks are busy. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ReactWidget, UseSignal } from '@jupyterlab/ui-components';
import React from 'react';
import { CommandIDs } from '../sidebar/acting/commandIds';
import { nbdistIcon } from '../sidebar/panel/icons';
import { INbdist } from '../tokens';

export const statusPlugin: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:status',
  description: 'Shows in the status bar how many ranks are busy.',
  autoStart: true,
  requires: [INbdist],
  optional: [IStatusBar],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    statusBar: IStatusBar | null
  ): void => {
    const { model, words, settings } = nbdist;
    if (!statusBar) {
      return;
    }
    const trans = words.trans;
    const shown = (): boolean =>
      settings.showStatusBar &&
      model.state !== null &&
      words.summary(model.state).total > 0;
    const item = ReactWidget.create(
      <UseSignal signal={model.changed}>
        {() => {
          const { busy, total, dead } = words.summary(
            model.state ?? { processes: [], unreadable: [], time: 0 }
          );
          const told = dead
            ? trans._n(
                '%2/%1 rank busy, %3 dead',
                '%2/%1 ranks busy, %3 dead',
                total,
                busy,
                dead
              )
            : trans._n('%2/%1 rank busy', '%2/%1 ranks busy', total, busy);
          return (
            <button
              type="button"
              className="jp-NbdistStatus"
              title={trans.__('Show clusters and jobs')}
              onClick={() => {
                void app.commands.execute(CommandIDs.show);
              }}
            >
              <nbdistIcon.react tag="span" width="14px" height="14px" />
              {told}
            </button>
          );
        }}
      </UseSignal>
    );
    statusBar.registerStatusItem(statusPlugin.id, {
      item,
      align: 'left',
      rank: 60,
      isActive: shown,
      activeStateChanged: model.changed
    });
  }
};
