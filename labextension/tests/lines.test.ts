import assert from 'node:assert/strict';
import test from 'node:test';
import { colours, draw, type IDrawing } from '../src/metrics/chart/lines';
import { decode, type IState } from '../src/metrics/data/state';
import { DEFAULTS, type IOptions } from '../src/metrics/data/options';
import { encode, type IMetric } from './job';

function drawn(
  metrics: IMetric[],
  options: Partial<IOptions> = {},
  hidden: string[] = []
): IDrawing {
  const state: IState = decode(new DataView(encode(metrics).buffer), null)!;
  return draw(state.panels[0], { ...DEFAULTS, ...options }, new Set(hidden));
}

function column({ data, lines }: IDrawing, role: string, curve = 0): unknown[] {
  const at = lines.findIndex(
    line => line.role === role && line.curve === curve
  );
  return Array.from(data[at + 1]);
}

test('a split has its colour in every panel, and no two curves share one', () => {
  assert.deepEqual(colours(['val', 'train']), [1, 0]);
  assert.deepEqual(colours(['a', 'val', 'b', 'train']), [2, 1, 3, 0]);
  assert.deepEqual(colours(['train', 'training']), [0, 1]);
});

test('a mean and the range of the ranks', () => {
  const found = drawn([
    {
      name: 'loss',
      steps: [0, 1],
      values: [
        [1, 2],
        [3, 6]
      ]
    }
  ]);
  assert.deepEqual(column(found, 'mean'), [2, 4]);
  assert.deepEqual(column(found, 'low'), [1, 2]);
  assert.deepEqual(column(found, 'high'), [3, 6]);
  assert.deepEqual(
    found.bands.map(band => band.series),
    [[2, 1]]
  );
});

test('a curve is drawn across steps that only other curves have, and a NaN is a gap', () => {
  const found = drawn([
    {
      name: 'train/loss',
      panel: 'loss',
      steps: [0, 1, 2],
      values: [[1, NaN, 3]]
    },
    { name: 'val/loss', panel: 'loss', steps: [0, 2], values: [[4, 5]] }
  ]);
  assert.deepEqual([...found.data[0]], [0, 1, 2]);
  assert.deepEqual(column(found, 'mean', 0), [1, null, 3]);
  assert.deepEqual(column(found, 'mean', 1), [4, undefined, 5]);
});

test('on a logarithmic scale what is not above zero is left out', () => {
  const found = drawn([{ name: 'a', steps: [0, 1, 2], values: [[1, 0, -1]] }], {
    log: true
  });
  assert.deepEqual(column(found, 'mean'), [1, null, null]);
});

test('ranks apart: a line each, in colours of their own if there is one curve', () => {
  const metric = {
    name: 'a',
    steps: [0, 1],
    values: [
      [1, 2],
      [3, NaN]
    ]
  };
  const found = drawn([metric], { perRank: true });
  assert.deepEqual(
    found.lines.map(({ role, rank, colour }) => [role, rank, colour]),
    [
      ['rank', 0, 0],
      ['rank', 1, 1]
    ]
  );
  assert.deepEqual(
    [...found.data[2]],
    [3, undefined],
    'a rank that logged nothing has no gap'
  );
  const two = [metric, { ...metric, name: 'b' }].map(each => ({
    ...each,
    panel: 'p'
  }));
  assert.deepEqual(
    drawn(two, { perRank: true }).lines.map(line => line.colour),
    [0, 0, 1, 1]
  );
});

test('smoothing keeps the values themselves as a faint line', () => {
  const found = drawn([{ name: 'a', steps: [0, 1], values: [[1, 3]] }], {
    smoothing: 0.5
  });
  assert.deepEqual(column(found, 'raw'), [1, 3]);
  assert.ok((column(found, 'mean')[1] as number) < 3);
});

test('new numbers do not change the key of a drawing, and hiding a curve does', () => {
  const metric = { name: 'a', steps: [0, 1], values: [[1, 3]] };
  assert.equal(drawn([metric]).key, drawn([{ ...metric, steps: [0, 9] }]).key);
  assert.notEqual(drawn([metric]).key, drawn([metric], {}, ['a']).key);
  assert.notEqual(drawn([metric]).key, drawn([metric], { log: true }).key);
});

test('all curves hidden, and a metric without any value', () => {
  const metric = { name: 'a', steps: [0, 1], values: [[NaN, NaN]] };
  assert.deepEqual(
    drawn([metric], {}, ['a']).data.map(each => [...each]),
    [[]]
  );
  assert.deepEqual(column(drawn([metric]), 'mean'), [null, null]);
});
