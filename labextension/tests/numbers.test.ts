import assert from 'node:assert/strict';
import test from 'node:test';
import { exact, short, tick } from '../src/metrics/data/numbers';

test('values', () => {
  assert.equal(exact(Math.fround(0.1)), '0.1');
  assert.equal(exact(1234567.89), '1.23457e6');
  assert.equal(exact(-0.000012345), '-1.2345e-5');
  assert.equal(exact(0), '0');
  assert.equal(short(null), '–');
  assert.equal(short(0.123456), '0.1235');
  assert.equal(short(NaN), 'NaN');
});

test('ticks tell their neighbours apart', () => {
  assert.deepEqual(
    [0, 0.5, 1].map(value => tick(value, 0.5)),
    ['0', '0.5', '1']
  );
  assert.deepEqual(
    [0.25, 0.3].map(value => tick(value, 0.05)),
    ['0.25', '0.3']
  );
  assert.deepEqual(
    [10000, 12500].map(value => tick(value, 2500)),
    ['10k', '12.5k']
  );
  assert.deepEqual(
    [1001, 1002].map(value => tick(value, 1)),
    ['1001', '1002']
  );
  assert.equal(tick(2e6, 1e6), '2M');
  assert.equal(tick(3e-4, 1e-4), '3e-4');
});
