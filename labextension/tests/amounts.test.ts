import assert from 'node:assert/strict';
import test from 'node:test';
import table from '../../tests/amounts.json';
import { inBytes, inDigits, inRate, inTime } from '../src/amounts';

test('amounts are written as the kernel writes them', () => {
  const told = (row: (string | number)[], write: (n: number) => string) => {
    assert.equal(write(row[0] as number), row[1], String(row[0]));
  };
  table.times.forEach(row => {
    told(row, inTime);
  });
  table.sizes.forEach(row => {
    told(row, inBytes);
  });
  table.digits.forEach(row => {
    told(row, inDigits);
  });
  for (const [rate, label, words] of table.rates) {
    assert.equal(inRate(rate as number, label as string), words);
  }
});
