import assert from 'node:assert/strict';
import test from 'node:test';
import { smooth } from '../src/metrics/data/smooth';

test('a curve that is level stays so from its first value on', () => {
  for (const value of smooth([3, 3, 3, 3], 0.9)) {
    assert.ok(Math.abs(value! - 3) < 1e-12);
  }
});

test('the average is the weighted one', () => {
  const [first, second] = smooth([1, 2], 0.5);
  assert.equal(first, 1);
  assert.equal(second, (0.5 * 0.5 * 1 + 0.5 * 2) / (1 - 0.25));
});

test('gaps stay where they are and count for nothing', () => {
  assert.deepEqual(smooth([1, null, undefined, 1], 0.9).slice(1, 3), [
    null,
    undefined
  ]);
  assert.deepEqual(smooth([1, null, 2], 0.5), [
    smooth([1, 2], 0.5)[0],
    null,
    smooth([1, 2], 0.5)[1]
  ]);
});
