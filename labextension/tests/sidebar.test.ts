import assert from 'node:assert/strict';
import { test } from 'node:test';

import { news } from '../src/sidebar/announce';
import { History, LENGTH } from '../src/sidebar/history';
import { state, vanished, type IState } from '../src/sidebar/records';
import { Words } from '../src/sidebar/words';
import { trans } from './trans';

const words = new Words(trans);

/** What is known of one cluster with these ranks, and of one job. */
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

test('what is left out is empty or not known', () => {
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

test('what ranks do is said in words', () => {
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
  assert.equal(said('dead', 'was killed by SIGKILL'), 'bad: dead: SIGKILL');
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
  assert.equal(words.jobName(job), 'In [5]');
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

test('busy ranks are counted once, and none of what has vanished', () => {
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

test('what has vanished is told from what is over', () => {
  const gone = (kind: string, state: string): boolean =>
    vanished(known([], { state }, { alive: false, kind }).processes[0]);
  assert.equal(gone('kernel', 'done'), true);
  assert.equal(gone('keeper', 'running'), true);
  assert.equal(gone('keeper', 'done'), false);
  const [process] = known([], {}, { alive: false }).processes;
  assert.match(
    words.processTrouble(process),
    /process 7 on here\) has vanished/
  );
  assert.equal(words.processTrouble({ ...process, alive: true }), '');
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
  assert.equal(say(state({}), two), 'Cluster 1 with 2 ranks has started');
  const dead = known([
    ['busy', 'line 1'],
    ['dead', 'was killed by SIGKILL']
  ]);
  assert.equal(say(two, dead), 'Rank 1 of Cluster 1 is dead: SIGKILL');
  assert.equal(say(dead, two), 'Rank 1 of Cluster 1 was started anew');
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
    'In [5]: ValueError'
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
    'In [5]: Hang'
  );
  assert.equal(say(two, state({})), 'train.ipynb has ended');
  const many = (state: string): IState =>
    known(Array.from({ length: 9 }, () => [state, 'x']));
  assert.match(say(many('busy'), many('dead')), /^Rank 0 .*, and 6 more$/);
});

test('the last minute is remembered, a value a second', () => {
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
  history.take([], 101);
  assert.equal(history.of('a', 'cluster', '1', 0), undefined);
});

test('slow loops and those that stand still', () => {
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
