/** The ranks of a cluster or a job: few in rows, many in a grid of cells. */

import React from 'react';
import { useDesk } from '../acting/panelContext';
import { Row, type IRanksProps } from './rank';
import { RankGrid } from './rankGrid';

/** From this number on, ranks do not fit in rows. */
const MANY = 8;

export function Ranks(props: IRanksProps): React.JSX.Element {
  const { words } = useDesk();
  const { ranks } = props;
  if (ranks.length >= MANY) {
    return <RankGrid {...props} />;
  }
  return (
    <ul className="jp-NbdistRanks" aria-label={words.trans.__('Ranks')}>
      {ranks.map(rank => (
        <Row key={rank.rank} rank={rank} {...props} />
      ))}
    </ul>
  );
}
