/** Splits the stack traces of ranks into groups: ranks with the same stack are one group. */

/** Ranks with the same stack. */
export interface IGroup {
  ranks: number[];
  lines: ILine[];
}

export interface ILine {
  text: string;
  /** The line of the cell that this frame is at; the frame's source, below it, has the same number. */
  cell: number | null;
}

const FRAME = /^\s*File "Cell In\[[^"]*", line (\d+)/;

/** Put ranks with the same stack into groups; the smallest group comes first. */
export function group(stacks: Record<string, string>): IGroup[] {
  const groups = new Map<string, IGroup>();
  for (const [rank, told] of Object.entries(stacks)) {
    const same = groups.get(told) ?? { ranks: [], lines: parse(told) };
    same.ranks.push(Number(rank));
    groups.set(told, same);
  }
  return [...groups.values()].sort(
    (a, b) => a.ranks.length - b.ranks.length || a.ranks[0] - b.ranks[0]
  );
}

function parse(text: string): ILine[] {
  let cell: number | null = null;
  return text
    .trimEnd()
    .split('\n')
    .map(line => {
      const frame = FRAME.exec(line);
      if (frame) {
        cell = Number(frame[1]);
      } else if (!line.startsWith('    ')) {
        cell = null;
      }
      return { text: line, cell };
    });
}

/** Write ranks as ranges: 0-3, 5. */
export function spans(ranks: number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < ranks.length;) {
    let end = i;
    while (end + 1 < ranks.length && ranks[end + 1] === ranks[end] + 1) {
      end++;
    }
    parts.push(end > i ? `${ranks[i]}-${ranks[end]}` : String(ranks[i]));
    i = end + 1;
  }
  return parts.join(', ');
}
