/** Small components that the whole panel uses. */

import {
  caretDownIcon,
  caretRightIcon,
  type LabIcon
} from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import React from 'react';
import { useDesk } from '../acting/panelContext';
import { LookIcon } from './icons';
import type { Look } from '../words';

interface IButtonProps {
  icon: LabIcon;
  /** What the button does, with the name of the cluster, job or rank. */
  label: string;
  command: string;
  args?: ReadonlyPartialJSONObject;
  /** A word shown beside the icon. */
  word?: string;
}

export function Button(props: IButtonProps): React.JSX.Element {
  const { run } = useDesk();
  const { icon, label, command, args, word } = props;
  const go = (): void => {
    run(command, args);
  };
  return <IconButton icon={icon} label={label} word={word} go={go} />;
}

interface IIconButtonProps {
  icon: LabIcon;
  label: string;
  /** A word shown beside the icon. */
  word?: string;
  go: () => void;
}

export function IconButton(props: IIconButtonProps): React.JSX.Element {
  const { icon: Icon, label, word, go } = props;
  return (
    <button
      type="button"
      className="jp-NbdistButton"
      title={label}
      aria-label={label}
      onClick={go}
    >
      <Icon.react tag="span" width="14px" height="14px" aria-hidden="true" />
      {word && <span>{word}</span>}
    </button>
  );
}

/** A state: its icon and its words. */
export function State({
  look,
  text
}: {
  look: Look;
  text: string;
}): React.JSX.Element {
  return (
    <span className={`jp-NbdistState jp-mod-${look}`} title={text}>
      <LookIcon look={look} />
      <span className="jp-NbdistState-text">{text}</span>
    </span>
  );
}

interface IFoldProps {
  /** The name under which the panel remembers whether the part is folded. */
  name: string;
  open: boolean;
  label: string;
  children?: React.ReactNode;
}

/** The button that opens and folds a part, and shows which of both it is. */
export function Fold(props: IFoldProps): React.JSX.Element {
  const { folded, redraw } = useDesk();
  const open = isOpen(folded, props.name, props.open);
  const Caret = open ? caretDownIcon : caretRightIcon;
  return (
    <button
      type="button"
      className="jp-NbdistFold"
      aria-expanded={open}
      aria-label={props.label}
      onClick={() => {
        folded.set(props.name, open);
        redraw();
      }}
    >
      <Caret.react tag="span" width="16px" height="16px" aria-hidden="true" />
      {props.children}
    </button>
  );
}

/** Whether a part is open; `open` is its default. */
export function isOpen(
  folded: Map<string, boolean>,
  name: string,
  open: boolean
): boolean {
  const chosen = folded.get(name);
  return chosen === undefined ? open : !chosen;
}

interface ILinkProps {
  command: string;
  args: ReadonlyPartialJSONObject;
  title: string;
  children: React.ReactNode;
}

/** Words that lead to a place in a notebook when clicked. */
export function Link(props: ILinkProps): React.JSX.Element {
  const { run } = useDesk();
  const { command, args, title, children } = props;
  return (
    <button
      type="button"
      className="jp-NbdistLink"
      title={title}
      onClick={() => {
        run(command, args);
      }}
    >
      {children}
    </button>
  );
}

/** A text whose parts between backticks are shown as code. */
export function Coded({ text }: { text: string }): React.JSX.Element {
  return (
    <>
      {text
        .split(/`([^`\n]+)`/)
        .map((part, i) => (i % 2 ? <code key={i}>{part}</code> : part))}
    </>
  );
}
