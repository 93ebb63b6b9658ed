import assert from 'node:assert/strict';
import test from 'node:test';
import { inUnits } from '../src/metrics/view/resources';
import { decode } from '../src/metrics/data/state';
import { encode } from './job';

function panel(title: string, values: number[][]) {
  const steps = values[0].map((_, i) => i + 1);
  const sent = encode([], {}, [{ name: 'x', panel: title, steps, values }]);
  return inUnits(decode(new DataView(sent.buffer), null)!.resources[0]);
}

test('bytes are shown in the unit that suits the largest value', () => {
  const { title, curves } = panel('Memory, bytes', [
    [4e8, 5e8],
    [1e9, 2e9]
  ]);
  assert.equal(title, 'Memory, GB');
  const [{ mean, each, best, last }] = curves;
  assert.deepEqual([...mean].map(Math.fround), [0.7, 1.25].map(Math.fround));
  assert.deepEqual([...each[1].values], [1, 2]);
  assert.deepEqual([...best, last], [0.4, 2, 1.25]);
  assert.equal(
    panel('Network of the host, bytes/s', [[1500]]).title,
    'Network of the host, kB/s'
  );
  assert.equal(panel('Memory, bytes', [[999]]).title, 'Memory, bytes');
});

test('a panel without bytes stays as it is', () => {
  const { title, curves } = panel('CPU, % of one core', [[1600]]);
  assert.equal(title, 'CPU, % of one core');
  assert.equal(curves[0].mean[0], 1600);
});
