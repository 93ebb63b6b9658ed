/** Many ranks at a glance: a cell for each, and below the cells the details of one rank, or of all. */

import React, { useLayoutEffect, useRef, useState } from 'react';
import { useDesk } from '../acting/panelContext';
import { moved } from './gridKeys';
import { Histories } from './spark';
import { LookIcon } from './icons';
import { Place, Standing, type IRanksProps } from './rank';
import type { IRank } from '../server/records';

/** The size of a cell with the gap to the next one, in pixels; see `base.css`. */
const WIDTH = 52;
const HEIGHT = 36;
/** A grid with more rows scrolls, and only the rows in sight are drawn. */
const MOST_ROWS = 8;

export function RankGrid(props: IRanksProps): React.JSX.Element {
  const { words, history } = useDesk();
  const { ranks, process, kind, owner } = props;
  const [active, setActive] = useState<number | null>(null);
  const chosen = active === null ? undefined : ranks[active];
  const past =
    chosen === undefined
      ? history.all(process, kind, owner)
      : history.of(process, kind, owner, chosen.rank);
  const trans = words.trans;
  const name =
    chosen === undefined
      ? trans.__('Mean of all ranks')
      : trans.__('Rank %1', chosen.rank);
  return (
    <div className="jp-NbdistGrid">
      <Cells {...props} active={active} choose={setActive} />
      <div className="jp-NbdistGrid-one" role="group" aria-label={name}>
        {chosen === undefined ? (
          <p className="jp-NbdistDim">
            {trans.__('Mean of all ranks; click a square to see one rank')}
          </p>
        ) : (
          <>
            <div className="jp-NbdistLine">
              <Standing {...props} rank={chosen} />
            </div>
            <div className="jp-NbdistRank-uses">
              <Place {...props} rank={chosen} />
            </div>
          </>
        )}
        {!props.stale && <Histories past={past} />}
      </div>
    </div>
  );
}

interface ICellsProps extends IRanksProps {
  /** The place of the chosen rank; null while all ranks are shown together. */
  active: number | null;
  choose: (place: number | null) => void;
}

function Cells(props: ICellsProps): React.JSX.Element {
  const { words } = useDesk();
  const { ranks, process, kind, owner, active, choose, stale } = props;
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const columns = useColumns(box);
  const rows = Math.ceil(ranks.length / columns);
  const shown = Math.min(rows, MOST_ROWS);
  const first = Math.max(0, Math.min(Math.floor(top / HEIGHT), rows) - 1);
  const from = first * columns;
  const drawn = ranks.slice(from, from + (shown + 3) * columns);
  const id = (place: number): string =>
    `jp-nbdist-${process}-${kind}-${owner}-${place}`;
  const seen =
    active !== null && active >= from && active < from + drawn.length;
  const go = (place: number): void => {
    choose(place);
    const row = Math.floor(place / columns) * HEIGHT;
    const node = box.current!;
    const least = row + HEIGHT - node.clientHeight;
    node.scrollTop = Math.min(Math.max(node.scrollTop, least), row);
  };
  return (
    <div
      className="jp-NbdistGrid-cells"
      ref={box}
      style={{ height: shown * HEIGHT }}
      tabIndex={0}
      role="listbox"
      aria-label={words.ranks(ranks.length)}
      aria-activedescendant={seen ? id(active) : undefined}
      onScroll={event => {
        setTop(event.currentTarget.scrollTop);
      }}
      onKeyDown={event => {
        if (event.key === 'Escape') {
          choose(null);
          return;
        }
        const next = moved(event.key, active, columns, ranks.length);
        if (next !== null) {
          event.preventDefault();
          go(next);
        }
      }}
    >
      <div
        style={{
          height: rows * HEIGHT,
          paddingTop: first * HEIGHT,
          gridTemplateColumns: `repeat(${columns}, 1fr)`
        }}
      >
        {drawn.map((rank, i) => (
          <Cell
            key={rank.rank}
            rank={rank}
            id={id(from + i)}
            place={from + i}
            count={ranks.length}
            stale={stale}
            chosen={from + i === active}
            choose={() => {
              choose(from + i === active ? null : from + i);
            }}
          />
        ))}
      </div>
    </div>
  );
}

/** How many cells fit into a row. */
function useColumns(box: React.RefObject<HTMLDivElement>): number {
  const [columns, setColumns] = useState(5);
  useLayoutEffect(() => {
    const node = box.current!;
    const look = (): void => {
      setColumns(Math.max(1, Math.floor(node.clientWidth / WIDTH)));
    };
    const observer = new ResizeObserver(look);
    observer.observe(node);
    look();
    return () => {
      observer.disconnect();
    };
  }, [box]);
  return columns;
}

interface ICellProps {
  rank: IRank;
  id: string;
  place: number;
  count: number;
  stale: boolean;
  chosen: boolean;
  choose: () => void;
}

/** A rank's number, its state by shape and colour, and how much the rank uses. */
function Cell(props: ICellProps): React.JSX.Element {
  const { words } = useDesk();
  const { rank, id, place, count, stale, chosen, choose } = props;
  const told = words.rank(rank);
  const { look, text } = stale ? words.last(told) : told;
  const uses = stale ? undefined : words.most(rank);
  const said = [words.trans.__('Rank %1', rank.rank) + ': ' + text, uses?.told];
  const label = said.filter(Boolean).join(', ');
  return (
    <div
      id={id}
      role="option"
      aria-selected={chosen}
      aria-setsize={count}
      aria-posinset={place + 1}
      aria-label={label}
      title={label}
      className={`jp-NbdistCell jp-mod-${look}`}
      data-rank={rank.rank}
      onClick={choose}
    >
      <LookIcon look={look} />
      <span className="jp-NbdistCell-number">{rank.rank}</span>
      <span className="jp-NbdistCell-used">{uses?.text}</span>
      {uses?.share !== undefined && (
        <span
          className="jp-NbdistCell-bar"
          style={{ width: `${Math.min(100, uses.share)}%` }}
        />
      )}
    </div>
  );
}
