/** The stack traces of all ranks, side by side. */

import { ReactWidget, refreshIcon } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { messageOf } from '../acting/actions';
import { group, spans, type IGroup } from './stackText';

export class StacksView extends ReactWidget {
  /**
   * @param ask - Asks all ranks for their present stacks.
   */
  constructor(
    private readonly _name: string,
    private readonly _ask: () => Promise<Record<string, string>>,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-NbdistView');
    void this.ask();
  }

  /** Ask the ranks again. */
  async ask(): Promise<void> {
    this._asking = true;
    this.update();
    try {
      this._groups = group(await this._ask());
      this._at = new Date();
      this._trouble = '';
    } catch (error) {
      this._trouble = messageOf(error);
    }
    this._asking = false;
    this.update();
  }

  protected override render(): React.JSX.Element {
    const trans = this._trans;
    const told = this._asking
      ? trans.__('Collecting stack traces…')
      : this._trouble || trans.__('As of %1', this._at.toLocaleTimeString());
    return (
      <>
        <div className="jp-NbdistView-bar">
          <h2>{this._name}</h2>
          <button
            type="button"
            className="jp-NbdistButton"
            disabled={this._asking}
            onClick={() => {
              void this.ask();
            }}
          >
            <refreshIcon.react tag="span" width="14px" height="14px" />
            <span>{trans.__('Refresh')}</span>
          </button>
          <span role="status">{told}</span>
        </div>
        <div
          className="jp-NbdistStacks"
          tabIndex={0}
          role="group"
          aria-label={trans.__('Stack traces')}
        >
          {this._groups.map(each => (
            <Group key={each.ranks[0]} group={each} trans={trans} />
          ))}
        </div>
      </>
    );
  }

  private _groups: IGroup[] = [];
  private _trouble = '';
  private _asking = true;
  private _at = new Date();
}

function Group(props: {
  group: IGroup;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { trans } = props;
  const { ranks, lines } = props.group;
  const name =
    ranks.length > 1
      ? trans.__('Ranks %1', spans(ranks))
      : trans.__('Rank %1', ranks[0]);
  return (
    <section
      role="group"
      className="jp-NbdistStack"
      aria-label={name}
      tabIndex={0}
    >
      <h3>{name}</h3>
      <pre>
        {lines.map(({ text, cell }, i) =>
          cell === null ? (
            <span key={i}>{text}</span>
          ) : (
            <mark key={i} title={trans.__('Line %1 of the cell', cell)}>
              {text}
            </mark>
          )
        )}
      </pre>
    </section>
  );
}
