/** The panel in the sidebar: all clusters and jobs. */

import { ReactWidget } from '@jupyterlab/ui-components';
import { addIcon, clearIcon, refreshIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import type { ISignal } from '@lumino/signaling';
import React from 'react';
import { news } from './announce';
import { CommandIDs } from './commandIds';
import { DeskProvider, type IDesk } from './desk';
import { NothingYet, TroubleNote } from './empty';
import { LookIcon, nbdistIcon } from './icons';
import type { Model } from './model';
import { Button } from './parts';
import { Process } from './process';
import type { IProcess, IState } from './records';
import type { Settings } from './settings';
import type { Words } from './words';

export interface IPanelOptions {
  model: Model;
  words: Words;
  settings: Settings;
  commands: CommandRegistry;
  pathOf: (process: IProcess) => string;
  /** Emitted when other paths may be had. */
  pathsChanged: ISignal<unknown, unknown>;
}

export class NbdistPanel extends ReactWidget {
  constructor(private readonly _options: IPanelOptions) {
    super();
    const { model, words, pathsChanged } = _options;
    this.id = 'nbdist-panel';
    this.addClass('jp-NbdistPanel');
    this.title.icon = nbdistIcon;
    this.title.caption = words.trans.__('Clusters and jobs (nbdist)');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', words.trans.__('Clusters and jobs'));
    model.changed.connect(this._onChanged, this);
    pathsChanged.connect(this._redraw, this);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._options.model.watched = true;
    this.update();
  }

  /** Let the keyboard begin here, as soon as there is something to press. */
  takeFocus(): void {
    this._focus = true;
    this.update();
  }

  protected override onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    void this.renderPromise?.then(() => {
      if (this._focus) {
        this._focus = false;
        this.node.querySelector('button')?.focus();
      }
    });
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._options.model.watched = false;
  }

  override dispose(): void {
    if (!this.isDisposed) {
      this._options.model.watched = false;
      this._options.model.changed.disconnect(this._onChanged, this);
      this._options.pathsChanged.disconnect(this._redraw, this);
    }
    super.dispose();
  }

  protected override render(): React.JSX.Element {
    const { model, words, settings, commands, pathOf } = this._options;
    const desk: IDesk = {
      words,
      settings,
      history: model.history,
      now: model.state?.time ?? 0,
      run: (command, args) => {
        void commands.execute(command, args);
      },
      pathOf,
      folded: this._folded,
      redraw: () => {
        this.update();
      }
    };
    return (
      <DeskProvider value={desk}>
        <Toolbar state={model.state} words={words} />
        <div className="jp-NbdistHidden" role="status" aria-live="polite">
          {this._news}
        </div>
        <div className="jp-NbdistPanel-body" tabIndex={-1}>
          {model.trouble && (
            <TroubleNote
              trouble={model.trouble}
              told={model.told}
              stale={model.state !== null}
              trans={words.trans}
            />
          )}
          {model.state && <Everything state={model.state} words={words} />}
        </div>
      </DeskProvider>
    );
  }

  private _onChanged(): void {
    const { model, words } = this._options;
    if (model.state && model.state !== this._before) {
      // What was said stays until there is more to say.
      this._news = news(this._before, model.state, words) || this._news;
      this._before = model.state;
    }
    this._redraw();
  }

  private _redraw(): void {
    if (this.isVisible) {
      this.update();
    }
  }

  private readonly _folded = new Map<string, boolean>();
  private _before: IState | null = null;
  private _news = '';
  private _focus = false; // once it is drawn
}

function Toolbar({
  state,
  words
}: {
  state: IState | null;
  words: Words;
}): React.JSX.Element {
  const trans = words.trans;
  return (
    <div
      className="jp-NbdistToolbar"
      role="group"
      aria-label={trans.__('All clusters and jobs')}
    >
      <h2>{trans.__('Clusters and jobs')}</h2>
      <span className="jp-NbdistActions">
        <Button
          icon={addIcon}
          label={trans.__('Start a cluster…')}
          command={CommandIDs.start}
        />
        {state?.processes.some(({ alive }) => !alive) && (
          <Button
            icon={clearIcon}
            label={trans.__('Remove what has ended…')}
            command={CommandIDs.clean}
          />
        )}
        <Button
          icon={refreshIcon}
          label={trans.__('Ask the server now')}
          command={CommandIDs.refresh}
        />
      </span>
    </div>
  );
}

function Everything({
  state,
  words
}: {
  state: IState;
  words: Words;
}): React.JSX.Element {
  const { processes, unreadable } = state;
  const shown = processes.filter(
    each => each.clusters.length + each.jobs.length > 0
  );
  return (
    <>
      {!shown.length && !unreadable.length && (
        <NothingYet trans={words.trans} />
      )}
      {shown.map(process => (
        <Process key={process.id} process={process} />
      ))}
      {unreadable.map(({ id, why }) => (
        <p key={id} className="jp-NbdistTrouble">
          <LookIcon look="warn" />
          <span>
            {words.trans.__(
              'The state of process %1 cannot be read: %2',
              id,
              why
            )}
          </span>
        </p>
      ))}
    </>
  );
}
