import assert from 'node:assert/strict';
import { test } from 'node:test';

import { news } from '../src/sidebar/panel/announce';
import { History, LENGTH } from '../src/sidebar/server/history';
import { moved } from '../src/sidebar/panel/gridKeys';
import {
  lineOf,
  state,
  vanished,
  type IState
} from '../src/sidebar/server/records';
import { shelve } from '../src/sidebar/panel/sections';
import { area } from '../src/sidebar/panel/graph';
import { Words } from '../src/sidebar/words';
import { trans } from './trans';

const words = new Words(trans);

/** The state of a kernel that has one cluster with these ranks, and one job. */
function known(
  ranks: [state: string, words: string][],
  job: object = {},
  more: object = {}
): IState {
  return state({
    processes: [
      {
        id: 'a',
        pid: 7,
        host: 'here',
        notebook: '/home/me/train.ipynb',
        clusters: [
          {
            id: '1',
            np: ranks.length,
            created: 40,
            ranks: ranks.map(([state, words], rank) => ({ rank, state, words }))
          }
        ],
        jobs: [{ id: '2', number: 5, state: 'running', cluster: '1', ...job }],
        ...more
      }
    ],
    time: 100
  } as unknown as IState);
}

test('fields that were left out are empty or not known', () => {
  const { processes, unreadable } = known([['idle', 'idle']]);
  assert.deepEqual(unreadable, []);
  const [process] = processes;
  assert.equal(process.alive, true);
  assert.equal(process.kernel, '');
  assert.equal(process.clusters[0].ranks[0].cpu, null);
  assert.deepEqual(process.jobs[0].bars, []);
  assert.equal(process.jobs[0].seconds, null);
  assert.deepEqual(state(null).processes, []);
});

test('what ranks do, in words', () => {
  const said = (state: string, told: string): string => {
    const { look, text } = words.rank(
      known([[state, told]]).processes[0].clusters[0].ranks[0]
    );
    return `${look}: ${text}`;
  };
  assert.equal(said('idle', 'idle'), 'idle: idle');
  assert.equal(said('starting', 'starting'), 'wait: starting');
  assert.equal(said('busy', 'line 12'), 'busy: running cell line 12');
  assert.equal(said('busy', 'running'), 'busy: running');
  assert.equal(
    said('busy', 'line 3, in all_reduce for 1 min 15 s'),
    'wait: in all_reduce for 1 min 15 s, cell line 3'
  );
  assert.equal(said('dead', 'was killed by SIGKILL'), 'bad: killed by SIGKILL');
  assert.equal(said('dead', 'exited with code 1'), 'bad: exited with code 1');
  assert.equal(
    said('busy', 'ValueError in line 3'),
    'bad: ValueError in line 3'
  );
  assert.equal(said('ended', 'done'), 'idle: done');
});

test('names, times and numbers', () => {
  const { processes } = known([['idle', 'idle']], { began: 90 });
  const [process] = processes;
  const [job] = process.jobs;
  assert.equal(words.processName(process), 'train.ipynb');
  assert.equal(
    words.processName({ ...process, notebook: '', kind: 'keeper' }),
    'Detached job'
  );
  assert.equal(words.jobName(job), 'Job 2');
  assert.equal(words.cell(job), 'In [5]');
  assert.equal(words.jobAndCell(job), '2 (In [5])');
  assert.equal(words.jobAndCell({ ...job, number: 0 }), '2');
  assert.equal(words.jobTime(job, 100), '10 s');
  assert.equal(
    words.jobTime({ ...job, seconds: 61.4, state: 'done' }, 100),
    '1 min 1 s'
  );
  assert.equal(words.jobTime({ ...job, began: null }, 100), '');
  assert.equal(words.uptime(process.clusters[0], 100), '1 min');
  assert.equal(words.uptime(process.clusters[0], 40 + 5 * 86400), '5 d');
  assert.equal(words.ranks(1), '1 rank');
  assert.equal(words.used('gpu', 87.6), '88 %');
  assert.equal(words.used('memory', 1.26e9), '1.3 GB');
  assert.equal(words.used('cpu', null), '');
});

test('a bar says how far it is', () => {
  const bar = {
    label: 'steps',
    done: 300,
    total: 1000,
    rate: 12.52,
    samples: 800,
    left: 56,
    still: null
  };
  assert.equal(
    words.bar(bar),
    '300 of 1000 · 12.5 steps/s · 800 samples/s · 56 s left'
  );
  assert.equal(
    words.bar({ ...bar, total: null, rate: null, samples: null, left: null }),
    '300'
  );
});

test('busy ranks are counted once, and those of dead kernels not at all', () => {
  const now = known([
    ['busy', 'line 1'],
    ['idle', 'idle'],
    ['dead', 'exited with code 1']
  ]);
  assert.deepEqual(words.summary(now), { busy: 1, total: 3, dead: 1 });
  now.processes[0].jobs[0].ranks = now.processes[0].clusters[0].ranks;
  assert.equal(words.summary(now).total, 3);
  now.processes[0].jobs[0].cluster = '';
  assert.equal(words.summary(now).total, 6);
  now.processes[0].alive = false;
  assert.equal(words.summary(now).total, 0);
});

test('a process that has died is distinguished from one that has ended', () => {
  const gone = (kind: string, state: string): boolean =>
    vanished(known([], { state }, { alive: false, kind }).processes[0]);
  assert.equal(gone('kernel', 'done'), true);
  assert.equal(gone('keeper', 'starting'), true);
  assert.equal(gone('keeper', 'running'), true);
  assert.equal(gone('keeper', 'done'), false);
  const told = (more: object): string =>
    words.processTrouble(known([], {}, { alive: false, ...more }).processes[0]);
  assert.equal(told({ left: 0 }), 'Kernel died (pid 7): all ranks exited');
  assert.equal(told({ left: 1 }), 'Kernel died (pid 7): 1 rank still running');
  assert.equal(told({ left: 3 }), 'Kernel died (pid 7): 3 ranks still running');
  assert.match(told({}), /cannot be looked up from here/);
  assert.equal(told({ left: 0, clusters: [] }), 'Kernel died (pid 7)');
  assert.match(
    told({ kind: 'keeper' }),
    /^The keeper of this job died \(pid 7\)/
  );
  assert.equal(told({ alive: true }), '');
});

test('the result of a stop, in words', () => {
  const [cluster] = known([]).processes[0].clusters;
  assert.equal(words.stopped(cluster, {}), 'Cluster 1 stopped');
  assert.equal(
    words.stopped(cluster, { ended: 1, left: 0 }),
    'Cluster 1: 1 rank terminated'
  );
  assert.match(
    words.stopped(cluster, { ended: 0, left: 0 }),
    /nothing to stop/
  );
  assert.match(words.stopped(cluster, { ended: 1, left: 2 }), /2 ranks cannot/);
});

test('the notebook in front is first, dead kernels are last, empty ones are left out', () => {
  const of = (id: string, more: object = {}): IState['processes'][0] =>
    known([['idle', 'idle']], {}, { id, ...more }).processes[0];
  const { current, others, dead } = shelve(
    [
      of('a'),
      of('b', { alive: false }),
      of('c'),
      of('d', { clusters: [], jobs: [] })
    ],
    ({ id }) => id === 'c'
  );
  const ids = [current, others, dead].map(shelf => shelf.map(({ id }) => id));
  assert.deepEqual(ids, [['c'], ['a'], ['b']]);
});

test('reports of a job: an interrupt is shown once, and a trouble that is over is no warning', () => {
  const said = (more: object): string[] =>
    words
      .reports(known([], more).processes[0].jobs[0])
      .map(({ look, text }) => `${look}: ${text}`);
  assert.deepEqual(
    said({ state: 'interrupted', told: 'The cell was interrupted.' }),
    []
  );
  assert.deepEqual(said({ state: 'failed', told: 'x' }), ['bad: x']);
  assert.deepEqual(
    said({
      reports: ['Possible hang: rank 0', 'Resolved after 52 s'],
      straggler: 'Rank 1 is slow'
    }),
    [
      'warn: Possible hang: rank 0',
      'info: Resolved after 52 s',
      'info: Rank 1 is slow'
    ]
  );
});

test('the line of a rank, also of one that was last seen there', () => {
  const [rank] = known([['busy', 'line 7']]).processes[0].clusters[0].ranks;
  assert.equal(lineOf(rank), 7);
  assert.equal(lineOf({ ...rank, line: 8 }), 8);
  assert.equal(lineOf({ ...rank, words: 'ValueError in line 3' }), 3);
  assert.equal(lineOf({ ...rank, words: 'idle' }), null);
  assert.equal(words.last(words.rank(rank)).text, 'last seen: line 7');
});

test('keys move through a grid, and not out of it', () => {
  assert.equal(moved('ArrowRight', null, 5, 16), 0);
  assert.equal(moved('ArrowDown', 3, 5, 16), 8);
  assert.equal(moved('ArrowDown', 14, 5, 16), null);
  assert.equal(moved('ArrowLeft', 0, 5, 16), null);
  assert.equal(moved('End', 2, 5, 16), 15);
  assert.equal(moved('x', 2, 5, 16), null);
});

test('a cell shows how busy a rank is, or how much memory an idle rank holds', () => {
  const [rank] = known([['busy', 'line 7']]).processes[0].clusters[0].ranks;
  const uses = { cpu: 97, memory: 4e8, gpu: null, gpu_memory: null };
  assert.deepEqual(words.most({ ...rank, ...uses }), {
    text: '97 %',
    told: 'CPU 97 %',
    share: 97
  });
  assert.equal(words.most({ ...rank, ...uses, gpu: 5 })?.told, 'GPU 5 %');
  const idle = {
    ...rank,
    ...uses,
    state: 'idle' as const,
    gpu_memory: 12e9
  };
  assert.equal(words.most(idle)?.told, 'GPU memory 12 GB');
  assert.equal(words.most({ ...rank, state: 'dead' }), undefined);
});

test('a graph leaves out unknown values', () => {
  assert.equal(area([], 'cpu'), '');
  assert.equal(area([null, 50, null], 'cpu'), '');
  assert.equal(
    area([100, 0, null, 50, 50], 'cpu'),
    'M55.9 16L55.9 0.0L56.9 16.0L56.9 16Z' +
      'M59.0 16L59.0 8.0L60.0 8.0L60.0 16Z'
  );
});

test('changes are announced, ticking numbers are not', () => {
  const two = known([
    ['busy', 'line 1'],
    ['busy', 'line 1']
  ]);
  const say = (before: IState | null, now: IState): string =>
    news(before, now, words);
  assert.equal(say(null, two), '');
  assert.equal(
    say(
      two,
      known([
        ['busy', 'line 2'],
        ['idle', 'idle']
      ])
    ),
    ''
  );
  assert.equal(say(state({}), two), 'Cluster 1 started with 2 ranks');
  const dead = known([
    ['busy', 'line 1'],
    ['dead', 'was killed by SIGKILL']
  ]);
  assert.equal(say(two, dead), 'Rank 1 of Cluster 1: killed by SIGKILL');
  assert.equal(say(dead, two), 'Rank 1 of Cluster 1 restarted');
  assert.equal(
    say(
      two,
      known(
        [
          ['idle', 'idle'],
          ['idle', 'idle']
        ],
        { state: 'failed', told: 'ValueError' }
      )
    ),
    'Job 2: ValueError'
  );
  assert.equal(
    say(
      two,
      known(
        [
          ['busy', ''],
          ['busy', '']
        ],
        { reports: ['Hang'] }
      )
    ),
    'Job 2: Hang'
  );
  assert.equal(say(two, state({})), 'train.ipynb ended');
  const many = (state: string): IState =>
    known(Array.from({ length: 9 }, () => [state, 'x']));
  assert.match(say(many('busy'), many('dead')), /^Rank 0 .*, and 6 more$/);
});

test('the last minute is kept, with one value for each second', () => {
  const history = new History();
  const at = (time: number, cpu: number): void => {
    const now = known([['busy', 'line 1']]);
    now.processes[0].clusters[0].ranks[0].cpu = cpu;
    history.take(now.processes, time);
  };
  at(1, 10);
  at(1.4, 99);
  at(2, 20);
  assert.deepEqual(history.of('a', 'cluster', '1', 0)?.cpu, [10, 20]);
  assert.equal(history.of('a', 'job', '1', 0), undefined);
  for (let time = 3; time < 100; time++) {
    at(time, time);
  }
  const past = history.of('a', 'cluster', '1', 0)!.cpu;
  assert.equal(past.length, LENGTH);
  assert.equal(past.pop(), 99);
  assert.equal(history.all('a', 'cluster', '1')!.cpu.pop(), 99);
  history.take([], 101);
  assert.equal(history.of('a', 'cluster', '1', 0), undefined);
});

test('bars of slow loops, and of loops that stand still', () => {
  const bar = {
    label: 'epoch',
    done: 3,
    total: 10,
    rate: 1 / 33,
    samples: null,
    left: 198.4,
    still: null
  };
  assert.equal(words.bar(bar), '3 of 10 · 33 s/epoch · 3 min 18 s left');
  assert.equal(
    words.bar({ ...bar, rate: null, left: null, still: 45.2 }),
    '3 of 10 · no step for 45 s'
  );
});
