/** The server's HTTP interface for the sidebar: the state, logs and commands. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import { state, type IState } from './records';

/** A piece of a rank's log; positions are bytes from the beginning of the log. */
export interface ILogPart {
  text: string;
  from: number;
  to: number;
  size: number;
}

/** How a cluster was stopped; empty if its kernel has stopped it. */
export interface IStopped {
  /** How many ranks were ended by signals. */
  ended?: number;
  /** How many ranks no signal could end. */
  left?: number;
}

/** An error that the server has answered with. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string
  ) {
    super(message);
  }
}

export class Api {
  constructor(readonly settings: ServerConnection.ISettings) {}

  async state(): Promise<IState> {
    return state(await this._ask<Partial<IState>>(['state']));
  }

  async interrupt(process: string, job: string): Promise<void> {
    await this._do(process, 'interrupt', { job });
  }

  async stop(process: string, cluster: string): Promise<IStopped> {
    return this._do<IStopped>(process, 'stop', { cluster });
  }

  /** Restart a rank; returns the names of the variables that the new rank lacks. */
  async restart(
    process: string,
    cluster: string,
    rank: number
  ): Promise<string[]> {
    const told = await this._do<{ lacks?: string[] }>(process, 'restart', {
      cluster,
      rank
    });
    return told.lacks ?? [];
  }

  /** Return the stacks of all ranks of a cluster or a job, by rank. */
  async stacks(
    process: string,
    of: { cluster: string } | { job: string }
  ): Promise<Record<string, string>> {
    const told = await this._do<{ stacks: Record<string, string> }>(
      process,
      'stacks',
      of
    );
    return told.stacks;
  }

  /** Remove all detached jobs that have ended; returns their names. */
  async clean(): Promise<string[]> {
    return (await this._ask<{ removed: string[] }>(['clean'], {})).removed;
  }

  async log(
    process: string,
    job: string,
    rank: number,
    from: number
  ): Promise<ILogPart> {
    const path = ['processes', process, 'logs', job, String(rank)];
    return this._ask<ILogPart>(path, undefined, { from: String(from) });
  }

  private async _do<T>(
    process: string,
    action: string,
    args: object
  ): Promise<T> {
    return this._ask<T>(['processes', process, action], args);
  }

  private async _ask<T>(
    path: string[],
    body?: object,
    query: Record<string, string> = {}
  ): Promise<T> {
    const url =
      URLExt.join(
        this.settings.baseUrl,
        'nbdist/api',
        ...path.map(encodeURIComponent)
      ) + URLExt.objectToQueryString(query);
    const init =
      body === undefined
        ? { method: 'GET' }
        : { method: 'POST', body: JSON.stringify(body) };
    const answer = await ServerConnection.makeRequest(url, init, this.settings);
    const text = await answer.text();
    if (!answer.ok) {
      throw new ApiError(answer.status, said(text) ?? answer.statusText);
    }
    return JSON.parse(text) as T;
  }
}

/** The message in an answer, if the answer is an error of nbdist's server. */
function said(text: string): string | undefined {
  try {
    return (JSON.parse(text) as { message?: string }).message;
  } catch {
    return undefined; // an error page of a proxy, for example
  }
}
