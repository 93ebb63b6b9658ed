/** Makes states of clusters and jobs as the server sends them: see `nbdist/published/state_file.py`. */

import type { Page } from '@playwright/test';
import type {
  ICluster,
  IJob,
  IProcess,
  IRank,
  IState
} from '../../labextension/src/sidebar/server/records';

/** Any field may be left out: the server leaves out empty ones. */
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

/** A state with a little of everything that the panel can show. */
export function everything(): Sent<IState> {
  const ranks = [
    rank(0, { device: 'cuda:0', gpu: 88, gpu_memory: 12e9 }),
    rank(1, {
      words: 'line 12, in all_reduce for 12 s',
      host: 'elsewhere',
      device: 'cuda:1',
      cpu: 2
    }),
    rank(2, { state: 'dead', words: 'was killed by SIGKILL' }),
    rank(3, { state: 'idle', words: 'idle' })
  ];
  const running = job({
    bars: [{ label: 'steps', done: 312, total: 1000, rate: 12.5, left: 55 }],
    metrics: { 'train/loss': 0.1234, lr: 0.001 },
    reports: [
      'Possible hang: rank 0 has waited in all_reduce for 12 s; rank 1 has not reached it (cell line 7). Nothing was stopped.'
    ],
    straggler:
      'Rank 1 is the slowest: 5.28 ms/step slower than the median (40 %).'
  });
  const failed = job({
    id: '2',
    number: 9,
    state: 'failed',
    seconds: 13.2,
    told: 'Rank 0 failed: ValueError: shapes do not fit'
  });
  const detached = job({
    id: '7f3a',
    number: 4,
    detached: true,
    cluster: '',
    launcher: 'torchrun',
    ranks: [rank(0), rank(1, { words: 'line 3' })]
  });
  return state(
    [
      process({ clusters: [cluster(ranks)], jobs: [failed, running] }),
      process({ id: 'b2', kernel: '', kind: 'keeper', jobs: [detached] }),
      process({
        id: 'c3',
        kernel: 'gone',
        notebook: '/home/me/old.ipynb',
        alive: false,
        left: 1,
        clusters: [cluster([rank(0)], { id: '5' })]
      })
    ],
    {
      unreadable: [
        { id: 'deadbeef', why: 'it was written by another version of nbdist' }
      ]
    }
  );
}

/** Answers requests in the server's place. */
export class Fake {
  constructor(readonly page: Page) {}

  /** The requests, like `POST processes/a1/stop {"cluster":"1"}`. */
  readonly asked: string[] = [];
  state: Sent<IState> = state([]);
  /** Answers by the path after `nbdist/api/`; for other paths it is {}. */
  readonly answers: Record<string, object> = {};
  /** Reasons for refusals, by path. */
  readonly refusals: Record<string, string> = {};
  /** The HTTP status of the answer with the state; 0 closes the connection. */
  status = 200;

  async open(): Promise<void> {
    await this.page.routeWebSocket(/nbdist\/api\/stream/, socket => {
      void socket.close();
    });
    await this.page.route('**/nbdist/api/**', async route => {
      const request = route.request();
      const path = new URL(request.url()).pathname.split('nbdist/api/')[1];
      if (path === 'state') {
        if (this.status === 0) {
          await route.abort();
        } else if (this.status === 200) {
          await route.fulfill({ json: this.state });
        } else {
          await route.fulfill({ status: this.status, json: { message: 'no' } });
        }
        return;
      }
      if (path in this.refusals) {
        const json = { message: this.refusals[path] };
        await route.fulfill({ status: 409, json });
        return;
      }
      if (request.method() === 'GET') {
        const answer = this.answers[path] ?? {};
        const from = new URL(request.url()).searchParams.get('from');
        // A request that begins at the end of the log gets no text.
        const read = 'to' in answer && Number(from) === answer.to;
        await route.fulfill({ json: read ? { ...answer, text: '' } : answer });
        return;
      }
      this.asked.push(
        `${request.method()} ${path} ${request.postData() ?? ''}`.trim()
      );
      await route.fulfill({ json: this.answers[path] ?? {} });
    });
  }
}
