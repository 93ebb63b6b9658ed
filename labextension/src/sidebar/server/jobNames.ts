/** Names jobs for the server, and for people who compare jobs. */

import type { IJobName, IOther } from '../../metrics/host';
import type { IJob, IState } from './records';
import type { Words } from '../words';

/** The names by which the server finds a job's metrics. */
export function placeOf({ logs, id }: IJob): IJobName {
  return { folder: logs, job: id };
}

/** All jobs that have logged metrics, each with a name of its own. */
export function named(state: IState | null, words: Words): IOther[] {
  const found = (state?.processes ?? []).flatMap(process =>
    process.jobs
      .filter(job => job.logs && Object.keys(job.metrics).length > 0)
      .map(job => ({
        ...placeOf(job),
        name: words.jobName(job),
        process: words.processName(process),
        pid: process.pid
      }))
  );
  return found.map(({ folder, job, name, process, pid }) => {
    const same = found.filter(each => each.name === name);
    const twice = same.filter(each => each.process === process).length > 1;
    const where = twice ? `${process} (pid ${pid})` : process;
    return { folder, job, name: same.length > 1 ? `${name}, ${where}` : name };
  });
}
