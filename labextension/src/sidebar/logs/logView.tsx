/** A rank's log, live, with search. Only the lines in sight are drawn. */

import {
  caretDownIcon,
  caretUpIcon,
  ReactWidget
} from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useLayoutEffect, useRef, useState } from 'react';
import { inBytes } from '../../amounts';
import { count as counted } from '../../metrics/data/numbers';
import type { Follower } from './follower';
import { LogLine } from './logLine';
import { IconButton } from '../panel/parts';
import { useLines } from './useLines';

/** Pixels; see `base.css`. */
const ROW = 17;
/** How many lines are drawn above and below the lines in sight. */
const MARGIN = 20;

export class LogView extends ReactWidget {
  /**
   * @param _over - Whether the job has ended.
   */
  constructor(
    private readonly _name: string,
    private readonly _log: Follower,
    private readonly _over: () => boolean,
    private readonly _trans: TranslationBundle
  ) {
    super();
    this.addClass('jp-NbdistView');
  }

  override dispose(): void {
    this._log.dispose();
    super.dispose();
  }

  protected override render(): React.JSX.Element {
    return (
      <Log
        name={this._name}
        log={this._log}
        over={this._over}
        trans={this._trans}
      />
    );
  }
}

interface IProps {
  name: string;
  log: Follower;
  over: () => boolean;
  trans: TranslationBundle;
}

/** The position before the first match, where a search begins. */
const BEFORE = -1;

function Log({ name, log, over, trans }: IProps): React.JSX.Element {
  const lines = useLines(log);
  const [words, setWords] = useState('');
  const [at, setAt] = useState(BEFORE);
  const [follow, setFollow] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const found = log.text.find(words);
  const go = (to: number): void => {
    const last = found.length - 1;
    const next = to < 0 ? last : to > last ? 0 : to;
    setAt(next);
    if (found.length && box.current) {
      setFollow(false);
      box.current.scrollTop = Math.max(0, (found[next] - 5) * ROW);
    }
  };
  useLayoutEffect(() => {
    if (follow && box.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  });
  return (
    <>
      <div className="jp-NbdistView-bar">
        <h2>{name}</h2>
        <input
          type="search"
          className="jp-mod-styled"
          placeholder={trans.__('Search')}
          aria-label={trans.__('Search the log')}
          value={words}
          onChange={event => {
            setWords(event.target.value);
            setAt(BEFORE);
          }}
          onKeyDown={event => {
            if (event.key === 'Enter') {
              go(event.shiftKey ? at - 1 : at + 1);
            }
          }}
        />
        <span role="status" className="jp-NbdistFound">
          {words && count(at, found.length, trans)}
        </span>
        <IconButton
          icon={caretUpIcon}
          label={trans.__('Previous')}
          go={() => {
            go(at - 1);
          }}
        />
        <IconButton
          icon={caretDownIcon}
          label={trans.__('Next')}
          go={() => {
            go(at + 1);
          }}
        />
        <label>
          <input
            type="checkbox"
            checked={follow}
            onChange={event => {
              setFollow(event.target.checked);
            }}
          />
          {trans.__('Follow')}
        </label>
      </div>
      <Notes log={log} over={over} trans={trans} />
      <Lines
        sources={lines}
        words={words}
        current={found[at]}
        label={trans.__('Log')}
        box={box}
        onLeave={() => {
          setFollow(false);
        }}
      />
    </>
  );
}

/** Words for the number of matches, and for the match that is shown. */
function count(at: number, found: number, trans: TranslationBundle): string {
  if (!found) {
    return trans.__('not found');
  }
  return at < 0
    ? trans._n('%1 line found', '%1 lines found', found)
    : trans.__('%1 of %2', at + 1, found);
}

/** Notes above the lines: errors, an empty log, and lines that are not shown. */
function Notes({ log, over, trans }: Omit<IProps, 'name'>): React.JSX.Element {
  const { rank } = log.place;
  return (
    <>
      {log.trouble && <p className="jp-NbdistNote">{log.trouble}</p>}
      {log.read && log.text.empty && !log.trouble && (
        <p className="jp-NbdistNote">
          {over()
            ? trans.__('Rank %1 has printed nothing.', rank)
            : trans.__('Rank %1 has printed nothing yet.', rank)}
        </p>
      )}
      {log.text.forgotten > 0 && (
        <p className="jp-NbdistNote">
          {trans.__(
            '%1 earlier lines are not kept',
            counted(log.text.forgotten)
          )}
        </p>
      )}
      {log.left > 0 && (
        <p className="jp-NbdistNote">
          {trans.__('Earlier output (%1) hidden', inBytes(log.left))}{' '}
          <button
            type="button"
            className="jp-NbdistLink"
            onClick={() => {
              void log.readAll();
            }}
          >
            {trans.__('Show all')}
          </button>
        </p>
      )}
    </>
  );
}

interface ILinesProps {
  /** The lines with their terminal codes. */
  sources: string[];
  words: string;
  /** The index of the current match. */
  current: number | undefined;
  label: string;
  box: React.RefObject<HTMLDivElement>;
  /** Called when the user scrolls away from the end. */
  onLeave: () => void;
}

function Lines(props: ILinesProps): React.JSX.Element {
  const { sources, words, current, box } = props;
  const [top, setTop] = useState(0);
  const height = box.current?.clientHeight ?? 600;
  const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
  const last = Math.min(
    sources.length,
    Math.ceil((top + height) / ROW) + MARGIN
  );
  return (
    <div
      className="jp-NbdistLog"
      ref={box}
      tabIndex={0}
      role="log"
      aria-live="off"
      aria-label={props.label}
      onScroll={event => {
        const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
        setTop(scrollTop);
        if (
          scrollTop + clientHeight < scrollHeight - 2 * ROW &&
          scrollTop < top
        ) {
          props.onLeave();
        }
      }}
    >
      <div style={{ height: sources.length * ROW }}>
        <div style={{ transform: `translateY(${first * ROW}px)` }}>
          {sources.slice(first, last).map((source, i) => (
            <LogLine
              key={first + i}
              source={source}
              words={words}
              current={first + i === current}
            />
          ))}
        </div>
      </div>
    </div>
  );
}
