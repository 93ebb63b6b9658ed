/** The texts of a panel that has nothing to show, or nothing up to date. */

import type { TranslationBundle } from '@jupyterlab/translation';
import React from 'react';
import { LookIcon } from './icons';
import type { Trouble } from '../server/model';
import { Coded } from './parts';

/** Shows why the panel cannot show the present state. */
export function TroubleNote(props: {
  trouble: Trouble;
  told: string;
  stale: boolean;
  trans: TranslationBundle;
}): React.JSX.Element {
  const { trouble, told, stale, trans } = props;
  return (
    <div className="jp-NbdistTrouble">
      <LookIcon look={trouble === 'asking' ? 'wait' : 'bad'} />
      <span>
        <Coded text={troubleWords(trouble, told, trans)} />
        {stale && ` ${trans.__('Showing last known state.')}`}
      </span>
    </div>
  );
}

/** What is wrong, and what to do. */
export function troubleWords(
  trouble: Trouble,
  told: string,
  trans: TranslationBundle
): string {
  switch (trouble) {
    case 'asking':
      return trans.__('Loading…');
    case 'missing':
      return trans.__(
        'The Jupyter server has no nbdist: install nbdist in the environment of the server, and restart the server. `jupyter server extension list` should then list `nbdist.server`.'
      );
    case 'forbidden':
      return trans.__('Access denied by the server. Log in again.');
    case 'disconnected':
      return trans.__('The Jupyter server cannot be reached; retrying.');
    case 'failing':
      return trans.__('The server reports an error: %1', told);
  }
}

const FIRST_CELLS = '%load_ext nbdist\n\n%%distributed -np 2\nprint(rank)';

/** Shown while there are no clusters and no jobs. */
export function NothingYet({
  trans
}: {
  trans: TranslationBundle;
}): React.JSX.Element {
  return (
    <div className="jp-NbdistEmpty">
      <p>{trans.__('No cluster yet. In a notebook:')}</p>
      <pre>{FIRST_CELLS}</pre>
      <p>
        {trans.__(
          'The first distributed cell starts a cluster, which is then shown here. Or start one with the button above.'
        )}
      </p>
    </div>
  );
}
