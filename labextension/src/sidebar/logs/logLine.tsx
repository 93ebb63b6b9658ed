/** A line of a log, drawn by JupyterLab's own renderer: colours of terminals, and links. */

import { Sanitizer } from '@jupyterlab/apputils';
import { renderText } from '@jupyterlab/rendermime';
import React, { useLayoutEffect, useRef } from 'react';

const sanitizer = new Sanitizer();

interface IProps {
  /** The line as a terminal takes it. */
  source: string;
  /** What is searched for. */
  words: string;
  /** Whether the search stands here. */
  current: boolean;
}

function Line({ source, words, current }: IProps): React.JSX.Element {
  const host = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const node = host.current!;
    node.replaceChildren();
    // It draws before it returns; the promise is a form.
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

/** Drawn anew only if it has changed. */
export const LogLine = React.memo(Line);

/** Mark what was searched for; parts of it may have colours of their own. */
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

/** Mark all text between two places. */
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
