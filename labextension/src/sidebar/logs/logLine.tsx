/** A line of a log, drawn by JupyterLab's own renderer with terminal colours and links. */

import { Sanitizer } from '@jupyterlab/apputils';
import { renderText } from '@jupyterlab/rendermime';
import React, { useLayoutEffect, useRef } from 'react';

const sanitizer = new Sanitizer();

interface IProps {
  /** The line with its terminal codes. */
  source: string;
  /** The text that the user searches for. */
  words: string;
  /** Whether this line is the current match of the search. */
  current: boolean;
}

function Line({ source, words, current }: IProps): React.JSX.Element {
  const host = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const node = host.current!;
    node.replaceChildren();
    // The line is drawn when the call returns: nothing waits for the promise.
    void renderText({ host: node, sanitizer, source });
    mark(node, words);
  }, [source, words]);
  return (
    <div
      ref={host}
      className={`jp-RenderedText ${current ? 'jp-mod-current' : ''}`}
    />
  );
}

/** Redrawn only if the line has changed. */
export const LogLine = React.memo(Line);

/** Mark the matches of a search; a match may run through texts of several colours. */
function mark(host: HTMLElement, words: string): void {
  const wanted = words.toLowerCase();
  const text = wanted ? host.textContent.toLowerCase() : '';
  for (
    let at = text.indexOf(wanted);
    wanted && at >= 0;
    at = text.indexOf(wanted, at + wanted.length)
  ) {
    surround(host, at, at + wanted.length);
  }
}

/** Mark all text between two positions. */
function surround(host: HTMLElement, from: number, to: number): void {
  const texts = document.createTreeWalker(host, NodeFilter.SHOW_TEXT);
  let begin = 0;
  const parts: [Text, number, number][] = [];
  while (texts.nextNode()) {
    const node = texts.currentNode as Text;
    const end = begin + node.length;
    if (end > from && begin < to) {
      parts.push([node, Math.max(0, from - begin), Math.min(end, to) - begin]);
    }
    begin = end;
  }
  for (const [node, first, last] of parts) {
    const found = new Range();
    found.setStart(node, first);
    found.setEnd(node, last);
    found.surroundContents(document.createElement('mark'));
  }
}
