/** Finds the notebook of a process. */

import { PageConfig } from '@jupyterlab/coreutils';
import type { Session } from '@jupyterlab/services';
import type { IProcess } from './records';

/** The path of a process's notebook as the server knows it; '' if it is not known. */
export function pathOf(
  { kernel, notebook }: IProcess,
  sessions: Session.IManager
): string {
  for (const session of sessions.running()) {
    if (session.kernel?.id === kernel) {
      return session.path;
    }
  }
  return below(PageConfig.getOption('serverRoot'), notebook);
}

/** A file's path below the server's root (which may be given as `~/work`); '' if it is elsewhere. */
function below(root: string, file: string): string {
  const start = `${root.replace(/^~|\/+$/g, '')}/`;
  const at = root ? file.indexOf(start) : -1;
  return at < 0 ? '' : file.slice(at + start.length);
}
