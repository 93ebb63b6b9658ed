/** What the plugins of nbdist share. */

import { Token } from '@lumino/coreutils';
import type { Jobs } from './metrics/data/follow';
import type { Actions } from './sidebar/acting/actions';
import type { Model } from './sidebar/server/model';
import type { Settings } from './sidebar/settings';
import type { Targets } from './sidebar/acting/targets';
import type { Words } from './sidebar/words';

export interface INbdist {
  model: Model;
  words: Words;
  settings: Settings;
  targets: Targets;
  actions: Actions;
  /** The jobs whose metrics the page follows. */
  jobs: Jobs;
}

export const INbdist = new Token<INbdist>(
  'nbdist:INbdist',
  'The state of all clusters and jobs.'
);
