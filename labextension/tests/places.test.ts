import assert from 'node:assert/strict';
import test from 'node:test';
import {
  epochAt,
  originOf,
  placed,
  placeName
} from '../src/metrics/chart/axisPlaces';
import { decode, type IState } from '../src/metrics/data/state';
import { encode, type IMetric } from './job';

const BEGAN = 1_000_000;

function state(metrics: IMetric[], began = BEGAN): IState {
  return decode(new DataView(encode(metrics, { began }).buffer), null)!;
}

const LOSS: IMetric = {
  name: 'loss',
  steps: [1, 2, 3],
  times: [BEGAN + 10, BEGAN + 20, BEGAN + 40],
  values: [[5, 6, 7]],
  marks: [[2, 'nan', 0]]
};
const EPOCH: IMetric = {
  name: 'epoch',
  steps: [0, 1],
  times: [BEGAN, BEGAN + 20],
  values: [[0, 1]]
};

test('steps are where they are', () => {
  const { panels } = state([LOSS]);
  assert.equal(
    placed(panels[0], 'step', () => assert.fail()),
    panels[0]
  );
});

test('time counts from the beginning of the job', () => {
  const shown = state([LOSS]);
  const [curve] = placed(shown.panels[0], 'time', () => originOf(shown)).curves;
  assert.deepEqual([...curve.x], [10, 20, 40]);
  assert.deepEqual(curve.marks, [[20, 'nan', 0]]);
  const unknown = state([LOSS], 0);
  assert.equal(originOf(unknown).began, BEGAN + 10, 'of its first value');
});

test('the epoch is that of the time, at an even pace between and beyond', () => {
  const shown = state([LOSS, EPOCH]);
  const origin = originOf(shown);
  assert.equal(epochAt(origin.epochs!, BEGAN + 5), 0.25);
  const [curve] = placed(shown.panels[0], 'epoch', () => origin).curves;
  assert.deepEqual([...curve.x], [0.5, 1, 2]);
  assert.equal(originOf(state([LOSS])).epochs, null);
});

test('an epoch that is logged with each step is one at an even pace', () => {
  const times = [0, 10, 20, 30, 40, 50].map(at => BEGAN + at);
  const steps = [0, 1, 2, 3, 4, 5];
  const shown = state([
    { name: 'loss', steps, times, values: [[6, 5, 4, 3, 2, 1]] },
    { name: 'epoch', steps, times, values: [[0, 0, 1, 1, 2, 2]] }
  ]);
  const origin = originOf(shown);
  const [curve] = placed(shown.panels[0], 'epoch', () => origin).curves;
  assert.deepEqual([...curve.x], [0, 0.5, 1, 1.5, 2, 2.5]);
});

test('a step that was logged again stands where it was logged last', () => {
  const again = {
    ...LOSS,
    times: [BEGAN + 10, BEGAN + 50, BEGAN + 40],
    values: [
      [5, 6, 7],
      [5, 8, 9]
    ]
  };
  const shown = state([again]);
  const [curve] = placed(shown.panels[0], 'time', () => originOf(shown)).curves;
  assert.deepEqual([...curve.x], [10, 40, 50]);
  assert.deepEqual([...curve.mean], [5, 8, 7]);
  assert.deepEqual([...curve.each[1].values], [5, 9, 8]);
  assert.deepEqual(curve.marks, [[50, 'nan', 0]]);
});

test('places have names', () => {
  assert.equal(placeName('step', 1200), 'step 1,200');
  assert.equal(placeName('time', 1.234), '1.23 s');
  assert.equal(placeName('epoch', 2.5), 'epoch 2.5');
});
