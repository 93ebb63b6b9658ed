/** What all components of the panel share: words, histories, settings, commands. */

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
  /** Do what a command does. */
  run: (command: string, args?: ReadonlyPartialJSONObject) => void;
  /** The path of its notebook as the server knows it; '' if it does not. */
  pathOf: (process: IProcess) => string;
  /** Folded parts, by name. */
  folded: Map<string, boolean>;
  /** Draw anew. */
  redraw: () => void;
}

const Desk = createContext<IDesk | null>(null);

export const DeskProvider = Desk.Provider;

export function useDesk(): IDesk {
  return useContext(Desk)!;
}
