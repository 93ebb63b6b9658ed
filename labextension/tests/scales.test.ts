import assert from 'node:assert/strict';
import test from 'node:test';
import { timeLabels, timeTicks } from '../src/metrics/chart/times';
import {
  evenly,
  labels,
  logLabels,
  logSplits,
  stepTicks,
  valueScale
} from '../src/metrics/chart/scales';

const ROOM = 5;
/** The relative error of a number's last digit. */
const NOISE = 1e-15;

/** Ranges from one part in a billion to 360 decades. */
function ranges(): [number, number][] {
  const found: [number, number][] = [[1e-300, 1e60]];
  for (let power = -300; power <= 60; power += 7) {
    const at = Number(`1e${power}`);
    for (const wide of [1 + 1e-9, 1.001, 1.05, 1.4, 2.2, 5, 9, 30, 400, 1e6]) {
      found.push([3 * at, 3 * at * wide], [at, at * wide]);
    }
    found.push([at, Math.min(1e60, at * 1e30 * 1e30)]);
  }
  return found.filter(([min, max]) => min < max);
}

/** Expect at least two labels, all different and within the range, and no more than have room. */
function check(
  written: (number | null)[],
  [min, max]: [number, number],
  room: number
): void {
  const about = `${min} to ${max}: ${labels(written).join(' ')}`;
  const shown = written.filter(split => split !== null);
  assert.ok(shown.length >= 2 && shown.length <= room, about);
  assert.ok(
    shown.every(
      split => split - min >= -NOISE * split && split - max <= NOISE * split
    ),
    about
  );
  const told = labels(written).filter(label => label !== '');
  assert.equal(new Set(told).size, shown.length, about);
}

test('a logarithmic axis has labels whatever its range', () => {
  for (const range of ranges()) {
    check(logLabels(logSplits(...range, ROOM), ROOM), range, ROOM);
  }
});

test('a linear axis has labels whatever its range', () => {
  for (const range of ranges()) {
    check(evenly(...range, ROOM), range, ROOM);
  }
  assert.deepEqual(labels(evenly(-1e60, 1e60, ROOM)), [
    '-1e60',
    '-5e59',
    '0',
    '5e59',
    '1e60'
  ]);
});

test('a logarithmic axis has labels that a person would choose', () => {
  const told = (min: number, max: number, room: number): string =>
    labels(logLabels(logSplits(min, max, room), room))
      .filter(label => label)
      .join(' ');
  assert.equal(told(0.3, 2.5, ROOM), '0.5 1 2');
  assert.equal(told(0.0008, 130, ROOM), '0.01 1 100');
  assert.equal(told(1e-12, 1, ROOM), '1e-10 1e-5 1');
  assert.equal(told(101, 102.2, ROOM), '101 101.5 102');
  assert.equal(told(800, 2e7, ROOM), '1k 10k 100k 1M 10M');
});

test('the scale reaches around its values, over hundreds of decades, too', () => {
  const range = valueScale({ log: true, fromZero: false }).range as unknown as (
    chart: null,
    min: number,
    max: number
  ) => [number, number];
  const [min, max] = range(null, 1e-300, 1e60);
  assert.ok(min > 0 && min < 1e-300 && max > 1e60 && max < Infinity);
});

test('steps are whole numbers', () => {
  assert.deepEqual(stepTicks(0, 3, 8), [0, 1, 2, 3]);
  assert.deepEqual(stepTicks(0, 1e6, 6), [0, 2e5, 4e5, 6e5, 8e5, 1e6]);
  assert.deepEqual(stepTicks(6.5, 6.9, 8), []);
});

test('ticks of time are at whole seconds, minutes and hours', () => {
  const told = (min: number, max: number): string =>
    timeLabels(timeTicks(min, max, ROOM)).join(' ');
  assert.equal(told(0, 4), '0 1 s 2 s 3 s 4 s');
  assert.equal(told(0, 100), '0 30 s 1 min 1 min 30 s');
  assert.equal(told(100, 5000), '30 min 1 h');
  assert.equal(told(0, 0.5), '0 0.1 s 0.2 s 0.3 s 0.4 s 0.5 s');
  assert.ok(timeTicks(0, 40 * 86400, ROOM).length >= 3);
});

test('an axis from zero has zero', () => {
  const range = valueScale({ log: false, fromZero: true }).range as unknown as (
    chart: null,
    min: number,
    max: number
  ) => [number, number];
  assert.equal(range(null, 3, 4)[0], 0);
  assert.equal(range(null, -4, -3)[1], 0);
});
