/** What all components of the panel use: words, histories, settings, commands. */

import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { createContext, useContext } from 'react';
import type { History } from '../server/history';
import type { IProcess } from '../server/records';
import type { Settings } from '../settings';
import type { Words } from '../words';

export interface IDesk {
  words: Words;
  history: History;
  settings: Settings;
  /** The server's time, in seconds. */
  now: number;
  /** Execute a command of JupyterLab. */
  run: (command: string, args?: ReadonlyPartialJSONObject) => void;
  /** The path of a process's notebook as the server knows it; '' if it is not known. */
  pathOf: (process: IProcess) => string;
  /** By name of a part: whether the user has folded it (true) or opened it. */
  folded: Map<string, boolean>;
  /** Redraw the panel. */
  redraw: () => void;
}

const Desk = createContext<IDesk | null>(null);

export const DeskProvider = Desk.Provider;

export function useDesk(): IDesk {
  return useContext(Desk)!;
}
