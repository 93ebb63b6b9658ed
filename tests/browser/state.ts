/** Makes what the server tells of clusters and jobs, as `nbdist/hub/record.py` has it. */

import type { Page } from '@playwright/test';
import type {
  ICluster,
  IJob,
  IProcess,
  IRank,
  IState
} from '../../labextension/src/sidebar/records';

/** What is empty is left out, as the server does. */
export type Sent<T> = {
  [name in keyof T]?: T[name] extends (infer U)[]
    ? U extends object
      ? Sent<U>[]
      : T[name]
    : T[name];
};

export function rank(rank: number, more: Sent<IRank> = {}): Sent<IRank> {
  return {
    rank,
    state: 'busy',
    words: 'line 12',
    host: 'here',
    pid: 41_000 + rank,
    device: 'cpu',
    cpu: 97,
    memory: 412e6,
    ...more
  };
}

export function cluster(
  ranks: Sent<IRank>[],
  more: Sent<ICluster> = {}
): Sent<ICluster> {
  return {
    id: '1',
    np: ranks.length,
    backend: 'ddp',
    launcher: 'engines',
    state: 'running',
    created: 1_000_000,
    ranks,
    ...more
  };
}

export function job(more: Sent<IJob> = {}): Sent<IJob> {
  return {
    id: '3',
    number: 12,
    state: 'running',
    ranks: [],
    first_line: 'for epoch in range(10):',
    launcher: 'engines',
    cluster: '1',
    created: 1_000_100,
    began: 1_000_100,
    ...more
  };
}

export function process(more: Sent<IProcess> = {}): Sent<IProcess> {
  return {
    id: 'a1',
    pid: 40_000,
    host: 'here',
    kernel: 'k1',
    notebook: '/home/me/train.ipynb',
    kind: 'kernel',
    alive: true,
    ...more
  };
}

export function state(
  processes: Sent<IProcess>[],
  more: Sent<IState> = {}
): Sent<IState> {
  return { processes, unreadable: [], time: 1_000_190, ...more };
}

/** Answers in the server's place. */
export class Fake {
  constructor(readonly page: Page) {}

  /** What was asked for, as `POST processes/a1/stop {"cluster":"1"}`. */
  readonly asked: string[] = [];
  state: Sent<IState> = state([]);
  /** By path after `nbdist/api/`, what is answered; else {}. */
  readonly answers: Record<string, object> = {};
  status = 200;

  async open(): Promise<void> {
    await this.page.routeWebSocket(/nbdist\/api\/stream/, socket => {
      void socket.close();
    });
    await this.page.route('**/nbdist/api/**', async route => {
      const request = route.request();
      const path = new URL(request.url()).pathname.split('nbdist/api/')[1];
      if (path === 'state') {
        await route.fulfill({
          status: this.status,
          json: this.status === 200 ? this.state : { message: 'no' }
        });
        return;
      }
      this.asked.push(
        `${request.method()} ${path} ${request.postData() ?? ''}`.trim()
      );
      await route.fulfill({ json: this.answers[path] ?? {} });
    });
  }
}
