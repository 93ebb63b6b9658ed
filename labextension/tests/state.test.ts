import assert from 'node:assert/strict';
import test from 'node:test';
import { decode } from '../src/metrics/state';
import { encode } from './job';

test('nothing was sent yet', () => {
  assert.equal(decode(new DataView(new ArrayBuffer(0))), null);
});

test('numbers are found where the header says, wherever the bytes lie', () => {
  const sent = encode([
    { name: 'loss', steps: [2, 4], values: [[0.5, 0.25]] },
    { name: 'größe', steps: [1e12], values: [[7]] }
  ]);
  for (const shift of [0, 1, 4]) {
    const memory = new Uint8Array(sent.length + 16);
    memory.set(sent, shift);
    const state = decode(new DataView(memory.buffer, shift, sent.length))!;
    const [loss, size] = state.header.panels.map(panel => panel.curves[0]);
    assert.equal(size.name, 'größe');
    assert.deepEqual([...state.doubles.subarray(loss.x, loss.x + 2)], [2, 4]);
    assert.deepEqual(
      [...state.singles.subarray(loss.mean, loss.mean + 2)],
      [0.5, 0.25]
    );
    assert.equal(state.doubles[size.x], 1e12);
    assert.equal(state.singles[size.high], 7);
  }
});

test('another version is refused in words', () => {
  const sent = encode([], { version: 2 });
  assert.throws(
    () => decode(new DataView(sent.buffer)),
    /sends version 2.*reload/
  );
});
