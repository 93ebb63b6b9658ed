import assert from 'node:assert/strict';
import test from 'node:test';
import {
  assemble,
  decode,
  encode as encodeState,
  fromBase64,
  toBase64,
  type IFrame,
  type IState
} from '../src/metrics/data/state';
import { encode } from './job';

const view = (bytes: Uint8Array): DataView => new DataView(bytes.buffer);

test('nothing was sent yet', () => {
  assert.equal(decode(new DataView(new ArrayBuffer(0)), null), null);
});

test('every curve has its numbers, wherever the bytes lie', () => {
  const sent = encode([
    { name: 'loss', steps: [2, 4], values: [[0.5, 0.25]], times: [7, 8] },
    { name: 'größe', steps: [1e12], values: [[7], [9]] }
  ]);
  for (const shift of [0, 1, 4]) {
    const memory = new Uint8Array(sent.length + 16);
    memory.set(sent, shift);
    const state = decode(
      new DataView(memory.buffer, shift, sent.length),
      null
    )!;
    const [loss, size] = state.panels.map(panel => panel.curves[0]);
    assert.equal(size.name, 'größe');
    assert.deepEqual([...loss.x], [2, 4]);
    assert.deepEqual([...loss.time], [7, 8]);
    assert.deepEqual([...loss.mean], [0.5, 0.25]);
    assert.equal(size.x[0], 1e12);
    assert.equal(size.high[0], 9);
    assert.deepEqual(
      size.each.map(({ rank, values }) => [rank, ...values]),
      [
        [0, 7],
        [1, 9]
      ]
    );
  }
});

test('another version is refused in words', () => {
  const sent = encode([], { version: 9 });
  assert.throws(() => decode(view(sent), null), /is version 9.*reload/);
});

const START: IState = decode(
  view(
    encode([
      {
        name: 'loss',
        steps: [0, 1, 2],
        values: [
          [3, 2, 1],
          [5, 4, 3]
        ]
      },
      { name: 'lr', steps: [0], values: [[1]] }
    ])
  ),
  null
)!;

function later(
  panels: IFrame['panels'],
  numbers: [number[], number[]]
): IState {
  const [doubles, singles] = numbers;
  const header = {
    ...START,
    version: 2,
    whole: false,
    panels,
    resources: null
  };
  const sent = assemble({ ...header, floats: doubles.length }, [
    new Float64Array(doubles),
    new Float32Array(singles)
  ]);
  return decode(view(sent), START)!;
}

const LR = { title: 'lr', curves: [{ name: 'lr', label: 'lr' }] };
const FACTS = { stride: 1, points: 8, marks: [], last: 1, best: [0, 5] };

test('what is new follows what is known, and curves without news stay the same', () => {
  const part = { from: 2, count: 2 };
  const curve = {
    name: 'loss',
    label: 'loss',
    ...FACTS,
    ...part,
    each: [
      { rank: 0, from: 3, count: 1, x: false, time: false },
      { rank: 1, from: 0, count: 1, x: true, time: true }
    ]
  } as IFrame['panels'][0]['curves'][0];
  const now = later(
    [{ title: 'loss', curves: [curve] }, LR],
    [
      [2, 3, 12, 13, 7, 8],
      [20, 30, 21, 31, 22, 32, 0.5, 0.25]
    ]
  );
  const [loss] = now.panels[0].curves;
  assert.deepEqual([...loss.x], [0, 1, 2, 3]);
  assert.deepEqual([...loss.time].slice(2), [12, 13]);
  assert.deepEqual([...loss.mean], [4, 3, 20, 30]);
  assert.deepEqual([...loss.high], [5, 4, 22, 32]);
  assert.deepEqual([...loss.each[0].values], [3, 2, 1, 0.5]);
  assert.deepEqual([...loss.each[1].values], [0.25]);
  assert.deepEqual([...loss.each[1].x!, ...loss.each[1].time!], [7, 8]);
  assert.equal(now.panels[1].curves[0], START.panels[1].curves[0]);
  assert.equal(START.panels[0].curves[0].x.length, 3, 'states do not change');
});

test('resources have names of their own, and stay where they have no news', () => {
  const memory = { name: 'memory', panel: 'Memory, bytes', steps: [1] };
  const first = decode(
    view(
      encode([{ name: 'memory', steps: [3], values: [[7]] }], {}, [
        { ...memory, values: [[1e9], [2e9]] }
      ])
    ),
    null
  )!;
  const [metric] = first.panels[0].curves;
  const [resource] = first.resources[0].curves;
  assert.deepEqual([...metric.x, ...metric.mean], [3, 7]);
  assert.deepEqual(
    resource.each.map(({ values }) => values[0]),
    [1e9, 2e9]
  );
  const header = { ...first, version: 2, whole: false, floats: 0 };
  const known = [{ name: 'memory', label: 'memory' }];
  const panels = [{ title: 'memory', curves: known }];
  for (const resources of [null, [{ title: 'Memory', curves: known }]]) {
    const later = decode(
      view(assemble({ ...header, panels, resources }, [])),
      first
    )!;
    assert.equal(later.panels[0].curves[0], metric);
    assert.equal(later.resources[0].curves[0], resource);
  }
});

test('a rank begun anew makes a curve shorter', () => {
  const curve = { name: 'loss', label: 'loss', ...FACTS, from: 1, count: 0 };
  const panels = [
    { title: 'loss', curves: [{ ...curve, each: [] }] }
  ] as unknown as IFrame['panels'];
  const [loss] = later(panels, [[], []]).panels[0].curves;
  assert.deepEqual([...loss.x, ...loss.mean], [0, 4]);
});

test('a frame whose beginning is missing is refused', () => {
  const sent = encode([], { whole: false });
  assert.throws(() => decode(view(sent), null), /is missing/);
  const panels = [
    { title: 'a', curves: [{ name: 'a', label: 'a' }] }
  ] as IFrame['panels'];
  assert.throws(() => later(panels, [[], []]), /metric a is missing/);
});

test('a state that is kept as text is the same when it is read', () => {
  const curve = START.panels[0].curves[0];
  const own = { x: new Float64Array([1]), time: new Float64Array([2]) };
  const each = [{ rank: 0, values: new Float32Array([NaN]), ...own }];
  const state = {
    ...START,
    title: 'größe',
    panels: [{ title: 'loss', curves: [{ ...curve, each }, curve] }]
  };
  const text = toBase64(encodeState(state));
  assert.deepEqual(decode(fromBase64(text), null), state);
});
