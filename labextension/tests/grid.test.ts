import assert from 'node:assert/strict';
import test from 'node:test';
import { matches, ordered } from '../src/metrics/view/grid';
import { Preferences } from '../src/metrics/data/preferences';
import type { ICurve, IPanel } from '../src/metrics/data/state';

const panel = (title: string, ...names: string[]): IPanel => ({
  title,
  curves: names.map(name => ({ name }) as ICurve)
});

test('a filter looks for all its words, in any case, in one name', () => {
  const loss = panel('loss', 'train/loss', 'val/loss');
  assert.ok(matches(loss, ''));
  assert.ok(matches(loss, ' LOSS tr'));
  assert.ok(!matches(loss, 'train val'));
  assert.ok(!matches(loss, 'grad'));
});

test('pinned panels stand first, in the order in which they were pinned', () => {
  const panels = [panel('a'), panel('b'), panel('c')];
  assert.deepEqual(
    ordered(panels, ['c', 'gone', 'b']).map(each => each.title),
    ['c', 'b', 'a']
  );
});

test('pins are kept and announced, and settings are taken', () => {
  const preferences = new Preferences();
  const kept: string[][] = [];
  let told = 0;
  preferences.keep = pinned => kept.push(pinned);
  const end = preferences.follow(() => told++);
  preferences.pin('a', true);
  preferences.pin('b', true);
  preferences.pin('a', false);
  assert.deepEqual(kept, [['a'], ['a', 'b'], ['b']]);
  preferences.take({ log: true }, ['c']);
  assert.deepEqual(
    [preferences.charts.log, preferences.charts.x],
    [true, 'step']
  );
  assert.deepEqual([preferences.pinned, kept.length, told], [['c'], 3, 4]);
  end();
  preferences.take({}, []);
  assert.deepEqual([preferences.charts.log, told], [false, 4]);
});
