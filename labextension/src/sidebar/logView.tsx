/** A rank's log, live, with search. Of many lines only those are drawn that can be seen. */

import {
  caretDownIcon,
  caretUpIcon,
  ReactWidget
} from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import React, { useLayoutEffect, useRef, useState } from 'react';
import { bytes } from '../metrics/numbers';
import { IconButton } from './parts';
import { useLines } from './useLines';
import type { Follower } from './follower';

/** Pixels; see `base.css`. */
const ROW = 17;
/** Lines beyond those in sight. */
const MARGIN = 20;

export class LogView extends ReactWidget {
  constructor(
    private readonly _name: string,
    private readonly _log: Follower,
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
    return <Log name={this._name} log={this._log} trans={this._trans} />;
  }
}

interface IProps {
  name: string;
  log: Follower;
  trans: TranslationBundle;
}

function Log({ name, log, trans }: IProps): React.JSX.Element {
  const lines = useLines(log);
  const [words, setWords] = useState('');
  const [at, setAt] = useState(0);
  const [follow, setFollow] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  const found = log.text.find(words);
  const go = (to: number): void => {
    const next = (to + found.length) % Math.max(1, found.length);
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
            setAt(0);
          }}
          onKeyDown={event => {
            if (event.key === 'Enter') {
              go(event.shiftKey ? at - 1 : at + 1);
            }
          }}
        />
        <span role="status" className="jp-NbdistFound">
          {words &&
            found.length > 0 &&
            trans.__('%1 of %2', at + 1, found.length)}
          {words && !found.length && trans.__('not found')}
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
      {log.text.forgotten > 0 && (
        <p className="jp-NbdistTrouble">
          {trans.__('%1 earlier lines are not kept.', log.text.forgotten)}
        </p>
      )}
      {log.trouble && <p className="jp-NbdistTrouble">{log.trouble}</p>}
      {log.left > 0 && (
        <p className="jp-NbdistTrouble">
          {trans.__('%1 before this are not shown.', bytes(log.left))}{' '}
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
      <Lines
        lines={lines}
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

interface ILinesProps {
  lines: string[];
  words: string;
  /** The line that was found. */
  current: number | undefined;
  label: string;
  box: React.RefObject<HTMLDivElement>;
  /** Somebody has scrolled away from the end. */
  onLeave: () => void;
}

function Lines(props: ILinesProps): React.JSX.Element {
  const { lines, words, current, box } = props;
  const [top, setTop] = useState(0);
  const height = box.current?.clientHeight ?? 600;
  const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
  const last = Math.min(lines.length, Math.ceil((top + height) / ROW) + MARGIN);
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
      <div style={{ height: lines.length * ROW }}>
        <pre style={{ transform: `translateY(${first * ROW}px)` }}>
          {lines.slice(first, last).map((line, i) => (
            <div
              key={first + i}
              className={first + i === current ? 'jp-mod-current' : ''}
            >
              {marked(line, words)}
            </div>
          ))}
        </pre>
      </div>
    </div>
  );
}

/** A line, with what was searched for marked. */
function marked(line: string, words: string): React.ReactNode {
  const at = words ? line.toLowerCase().indexOf(words.toLowerCase()) : -1;
  if (at < 0) {
    return line || ' ';
  }
  return (
    <>
      {line.slice(0, at)}
      <mark>{line.slice(at, at + words.length)}</mark>
      {line.slice(at + words.length)}
    </>
  );
}
