/** Which section of the panel a process stands in. */

import { vanished, type IProcess } from './records';

export interface IShelves {
  /** What belongs to the notebook in front. */
  current: IProcess[];
  others: IProcess[];
  /** Kernels that have died, and detached jobs whose keeper has. */
  dead: IProcess[];
}

/** Sort processes that have anything to show. */
export function shelve(
  processes: IProcess[],
  isCurrent: (process: IProcess) => boolean
): IShelves {
  const shelves: IShelves = { current: [], others: [], dead: [] };
  for (const process of processes) {
    if (process.clusters.length + process.jobs.length > 0) {
      const shelf = vanished(process)
        ? 'dead'
        : isCurrent(process)
          ? 'current'
          : 'others';
      shelves[shelf].push(process);
    }
  }
  return shelves;
}
