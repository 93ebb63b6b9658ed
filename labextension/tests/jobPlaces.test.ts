import assert from 'node:assert/strict';
import test from 'node:test';
import { named, placeOf } from '../src/sidebar/server/jobNames';
import { state, type IJob, type IProcess } from '../src/sidebar/server/records';
import { Words } from '../src/sidebar/words';
import { trans } from './trans';

const job = (id: string, more: Partial<IJob> = {}): IJob =>
  ({ id, logs: `folder-${id}`, metrics: { loss: 1 }, ...more }) as IJob;
const process = (pid: number, notebook: string, ...jobs: IJob[]): IProcess =>
  ({ id: String(pid), pid, notebook, jobs }) as IProcess;
const names = (...processes: IProcess[]): string[] =>
  named(state({ processes }), new Words(trans)).map(each => each.name);

test('a job is where its logs are', () => {
  assert.deepEqual(placeOf(job('3')), { folder: 'folder-3', job: '3' });
});

test('only jobs with metrics can be compared', () => {
  const jobs = [job('1'), job('2', { metrics: {} }), job('3', { logs: '' })];
  assert.deepEqual(names(process(7, 'a.ipynb', ...jobs)), ['Job 1']);
  assert.deepEqual(named(null, new Words(trans)), []);
});

test('jobs of the same name get the names of their notebooks, then of their kernels', () => {
  assert.deepEqual(
    names(
      process(7, 'a.ipynb', job('1'), job('2')),
      process(8, 'b.ipynb', job('1')),
      process(9, 'b.ipynb', job('1'))
    ),
    [
      'Job 1, a.ipynb',
      'Job 2',
      'Job 1, b.ipynb (pid 8)',
      'Job 1, b.ipynb (pid 9)'
    ]
  );
});
