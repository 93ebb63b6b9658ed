/** Decides which section of the panel shows a process. */

import { ended, vanished, type IProcess } from '../server/records';

export interface IShelves {
  /** Processes of the notebook in front. */
  current: IProcess[];
  others: IProcess[];
  /** Kernels that have died, and detached jobs whose keeper has died. */
  dead: IProcess[];
}

/** Sort processes into sections; a process with nothing to show is left out. */
export function shelve(
  processes: IProcess[],
  isCurrent: (process: IProcess) => boolean,
  showEnded = true
): IShelves {
  const shelves: IShelves = { current: [], others: [], dead: [] };
  for (const process of processes) {
    const some = process.jobs.some(job => showEnded || !ended(job));
    if (process.clusters.length > 0 || some) {
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
