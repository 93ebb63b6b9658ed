import assert from 'node:assert/strict';
import test from 'node:test';
import { before, draw } from '../src/metrics/chart/lines';
import { readings, type IReading } from '../src/metrics/chart/readings';
import { decode } from '../src/metrics/data/state';
import { DEFAULTS } from '../src/metrics/data/options';
import { encode, type IMetric } from './job';

function read(
  metrics: IMetric[],
  step: number,
  {
    perRank = false,
    smoothing = 0,
    focus = null as number | null,
    hidden = [] as string[]
  } = {}
): IReading[] {
  const [panel] = decode(new DataView(encode(metrics).buffer), null)!.panels;
  const options = { ...DEFAULTS, perRank, smoothing };
  const none = new Set(hidden);
  const drawing = draw(panel, options, none);
  return readings(panel, drawing, options, none, step, focus);
}

const told = (found: IReading[]): string[][] =>
  found.map(({ label, value, note }) => [label, value, note]);

const LOSS: IMetric[] = [
  {
    name: 'train/loss',
    label: 'train',
    panel: 'loss',
    steps: [0, 1, 2],
    values: [
      [1, 0.1, 3],
      [3, 0.2, 5]
    ]
  },
  {
    name: 'val/loss',
    label: 'val',
    panel: 'loss',
    steps: [0, 2],
    values: [[4, 5.25]]
  }
];

test('the last step up to another one', () => {
  assert.equal(before([], 3), -1);
  assert.equal(before([2, 4], 1), -1);
  assert.equal(before([2, 4], 3), 0);
  assert.equal(before([2, 4], 4), 1);
});

test('means with the range of the ranks, and where a curve was read', () => {
  assert.deepEqual(told(read(LOSS, 1)), [
    ['train', '0.15', '0.1 to 0.2'],
    ['val', '4', 'at step 0']
  ]);
  assert.deepEqual(told(read(LOSS, 2)), [
    ['train', '4', '3 to 5'],
    ['val', '5.25', '']
  ]);
});

test('hidden curves are not read, and neither are those that begin later', () => {
  assert.deepEqual(told(read(LOSS, 2, { hidden: ['train/loss'] })), [
    ['val', '5.25', '']
  ]);
  const late = [{ ...LOSS[1], steps: [5, 6] }];
  assert.deepEqual(read(late, 4), []);
});

test('a NaN is passed over', () => {
  const gap = [{ name: 'a', steps: [0, 1, 2], values: [[7, NaN, NaN]] }];
  assert.deepEqual(told(read(gap, 2)), [['a', '7', 'at step 0']]);
});

test('both values of a smoothed curve are given', () => {
  const smoothed = 0.5 * 0.5 * 2 + 0.5 * 0.15;
  assert.deepEqual(told(read(LOSS, 1, { smoothing: 0.5 })), [
    [
      'train',
      '0.15',
      `smoothed ${Number((smoothed / 0.75).toPrecision(4))}, 0.1 to 0.2`
    ],
    ['val', '4', 'smoothed 4, at step 0']
  ]);
  const [first] = read(LOSS, 1, { smoothing: 0.5, perRank: true });
  assert.deepEqual(
    [first.label, first.value, first.note],
    ['train, rank 0', '0.1', 'smoothed 0.4']
  );
});

test('few ranks are all read; of many the extremes and the one beside the mouse', () => {
  assert.deepEqual(told(read(LOSS, 2, { perRank: true })), [
    ['train, rank 0', '3', ''],
    ['train, rank 1', '5', ''],
    ['val', '5.25', '']
  ]);
  const many = [
    { name: 'a', steps: [0], values: Array.from({ length: 20 }, (_, i) => [i]) }
  ];
  assert.deepEqual(told(read(many, 0, { perRank: true, focus: 3 })), [
    ['rank 19', '19', 'max'],
    ['rank 3', '3', ''],
    ['rank 0', '0', 'min']
  ]);
});
