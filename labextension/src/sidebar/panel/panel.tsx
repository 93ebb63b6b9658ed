/** The panel in the sidebar: a toolbar, and sections that show the processes. */

import {
  AccordionToolbar,
  CommandToolbarButton,
  ReactWidget,
  SidePanel,
  addIcon,
  clearIcon,
  refreshIcon
} from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import type { Message } from '@lumino/messaging';
import type { ISignal } from '@lumino/signaling';
import { AccordionPanel } from '@lumino/widgets';
import React from 'react';
import { news } from './announce';
import { CommandIDs } from '../acting/commandIds';
import { DeskProvider, type IDesk } from '../acting/panelContext';
import { NothingYet, TroubleNote } from './empty';
import { LookIcon, nbdistIcon } from './icons';
import type { Model } from '../server/model';
import { Process } from './process';
import type { IProcess, IState } from '../server/records';
import { shelve } from './sections';
import type { Settings } from '../settings';
import type { Words } from '../words';

export interface IPanelOptions {
  model: Model;
  words: Words;
  settings: Settings;
  commands: CommandRegistry;
  pathOf: (process: IProcess) => string;
  /** Whether a process belongs to the notebook in front. */
  isCurrent: (process: IProcess) => boolean;
  /** Emitted when another notebook is in front, or when paths of notebooks have changed. */
  pathsChanged: ISignal<unknown, unknown>[];
}

export class NbdistPanel extends SidePanel {
  constructor(private readonly _options: IPanelOptions) {
    const layout = AccordionToolbar.createLayout({});
    const accordion = new AccordionPanel({ layout });
    super({ content: accordion });
    this._accordion = accordion;
    const { model, words, commands, pathsChanged } = _options;
    const trans = words.trans;
    this.id = 'nbdist-panel';
    this.addClass('jp-NbdistPanel');
    this.title.icon = nbdistIcon;
    this.title.caption = trans.__('Clusters and jobs (nbdist)');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', trans.__('Clusters and jobs'));
    for (const [id, icon] of [
      [CommandIDs.start, addIcon],
      [CommandIDs.clean, clearIcon],
      [CommandIDs.refresh, refreshIcon]
    ] as const) {
      const item = new CommandToolbarButton({ commands, id, icon, label: '' });
      this.toolbar.addItem(id, item);
    }
    this.toolbar.node.setAttribute(
      'aria-label',
      trans.__('All clusters and jobs')
    );
    this._head = new Head(() => this._drawHead());
    this.header.addWidget(this._head);
    // The accordion computes the places of its sections, which depend on the height of the head.
    this._observer = new ResizeObserver(() => {
      accordion.update();
    });
    this._observer.observe(this._head.node);
    this._sections = [
      this._section(trans.__('Current notebook'), 'current'),
      this._section(trans.__('Notebooks'), 'others'),
      this._section(trans.__('Dead kernels'), 'dead')
    ];
    accordion.expansionToggled.connect((_, index) => {
      const section = this._sections.find(
        each => each === accordion.widgets[index]
      );
      if (section && !this._moving) {
        section.chosen = !section.isHidden;
      }
      // A section that was never open before would get no room.
      accordion.setRelativeSizes(
        accordion.widgets.map(each => (each.isHidden ? 0 : 1))
      );
    });
    model.changed.connect(this._onChanged, this);
    pathsChanged.forEach(changed => {
      changed.connect(this._redraw, this);
    });
    this._arrange();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._options.model.watched = true;
    this._redraw();
  }

  /** Move the keyboard's focus to the panel. */
  takeFocus(): void {
    // In the next frame the buttons of the toolbar are drawn.
    requestAnimationFrame(() => {
      this.toolbar.node.querySelector<HTMLElement>('jp-button')?.focus();
    });
  }

  protected override onAfterHide(message: Message): void {
    super.onAfterHide(message);
    this._options.model.watched = false;
  }

  override dispose(): void {
    if (!this.isDisposed) {
      const { model, pathsChanged } = this._options;
      model.watched = false;
      this._observer.disconnect();
      model.changed.disconnect(this._onChanged, this);
      pathsChanged.forEach(changed => {
        changed.disconnect(this._redraw, this);
      });
    }
    super.dispose();
  }

  private _onChanged(): void {
    const { model, words } = this._options;
    if (model.state && model.state !== this._before) {
      // The last announcement stays until there is a new one.
      this._news = news(this._before, model.state, words) || this._news;
      this._before = model.state;
    }
    this._redraw();
  }

  private _redraw(): void {
    if (this.isVisible) {
      this._arrange();
      this._head.update();
      this._sections.forEach(section => {
        section.update();
      });
    }
  }

  /** Show the sections that have processes; the nearest one is open until the user chooses. */
  private _arrange(): void {
    const { model, isCurrent, settings } = this._options;
    const shelves = shelve(
      model.state?.processes ?? [],
      isCurrent,
      settings.showEnded
    );
    const near = shelves.current.length > 0;
    const none = !near && !shelves.others.length && !shelves.dead.length;
    const open = { current: true, others: !near, dead: false };
    const content = this._accordion;
    const { trans } = this._options.words;
    this._sections[1].title.label = near
      ? trans.__('Other notebooks')
      : trans.__('Notebooks');
    this._moving = true;
    let index = 0;
    for (const section of this._sections) {
      const { name } = section;
      const wanted =
        shelves[name].length > 0 ||
        (name === 'current' && none && model.state !== null);
      const opened = section.chosen ?? open[name];
      section.processes = shelves[name];
      if (!wanted) {
        section.parent = null;
        continue;
      }
      if (!section.parent) {
        section.setHidden(!opened);
        content.insertWidget(index, section);
      } else if (section.isHidden === opened) {
        content[opened ? 'expand' : 'collapse'](index);
      }
      index++;
    }
    this._moving = false;
  }

  private _section(label: string, name: Section['name']): Section {
    const section = new Section(name, processes =>
      this._drawSection(processes)
    );
    section.title.label = label;
    return section;
  }

  private _drawSection(processes: IProcess[]): React.JSX.Element {
    const { words } = this._options;
    return (
      <DeskProvider value={this._desk()}>
        {processes.length ? (
          processes.map(each => <Process key={each.id} process={each} />)
        ) : (
          <NothingYet trans={words.trans} />
        )}
      </DeskProvider>
    );
  }

  private _drawHead(): React.JSX.Element {
    const { model, words } = this._options;
    const { trans } = words;
    return (
      <>
        <h2 className="jp-NbdistHidden">{trans.__('Clusters and jobs')}</h2>
        <div className="jp-NbdistHidden" role="status" aria-live="polite">
          {this._news}
        </div>
        {model.trouble && (
          <TroubleNote
            trouble={model.trouble}
            told={model.told}
            stale={model.state !== null}
            trans={trans}
          />
        )}
        {model.state?.unreadable.map(({ id, why }) => (
          <p key={id} className="jp-NbdistTrouble">
            <LookIcon look="warn" />
            <span>
              {trans.__('The state of process %1 cannot be read: %2', id, why)}
            </span>
          </p>
        ))}
      </>
    );
  }

  private _desk(): IDesk {
    const { model, words, settings, commands, pathOf } = this._options;
    return {
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
        this._redraw();
      }
    };
  }

  private readonly _accordion: AccordionPanel;
  private readonly _head: Head;
  private readonly _observer: ResizeObserver;
  private readonly _sections: Section[];
  private readonly _folded = new Map<string, boolean>();
  private _before: IState | null = null;
  private _news = '';
  private _moving = false; // whether this code opens and closes sections, not the user
}

/** A part of the panel that is drawn only while it can be seen. */
abstract class Part extends ReactWidget {
  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.update();
  }

  override update(): void {
    if (this.isVisible) {
      super.update();
    }
  }
}

class Head extends Part {
  constructor(private readonly _draw: () => React.JSX.Element) {
    super();
    this.addClass('jp-NbdistPanel-head');
  }

  protected override render(): React.JSX.Element {
    return this._draw();
  }
}

class Section extends Part {
  constructor(
    readonly name: 'current' | 'others' | 'dead',
    private readonly _draw: (processes: IProcess[]) => React.JSX.Element
  ) {
    super();
    this.addClass('jp-NbdistSection');
  }

  processes: IProcess[] = [];
  /** Whether the user wants the section open; undefined before the user has opened or closed it. */
  chosen: boolean | undefined;

  protected override render(): React.JSX.Element {
    return this._draw(this.processes);
  }
}
