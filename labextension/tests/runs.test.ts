import assert from 'node:assert/strict';
import test from 'node:test';
import { csvOf, isThinned } from '../src/metrics/data/csv';
import { fileName } from '../src/metrics/elements/files';
import { page } from '../src/metrics/host';
import { DASHES, draw } from '../src/metrics/chart/lines';
import { DEFAULTS } from '../src/metrics/data/options';
import { laidOver, Runs } from '../src/metrics/data/runs';
import { decode, type IState } from '../src/metrics/data/state';
import { encode, type IMetric } from './job';

function state(job: string, metrics: IMetric[]): IState {
  const frame = encode(metrics, { job, folder: 'f' });
  return decode(new DataView(frame.buffer), null)!;
}

const LOSS: IMetric = { name: 'loss', steps: [0, 1], values: [[1, 2]] };
const PARTS: IMetric[] = ['train', 'val'].map(label => ({
  ...LOSS,
  name: `${label}/acc`,
  label,
  panel: 'acc'
}));
const OWN = state('1', [LOSS, ...PARTS]);
const OTHER = state('2', [LOSS, { ...LOSS, name: 'lr' }]);

test('a run alone is shown as it is', () => {
  assert.equal(laidOver([{ name: 'In [1]', state: OWN }]), OWN.panels);
});

test('curves of another run are in the same panels, with names and looks of their own', () => {
  const panels = laidOver([
    { name: 'In [1]', state: OWN },
    { name: 'In [2]', state: OTHER }
  ]);
  assert.deepEqual(
    panels.map(({ title, curves }) => [
      title,
      curves.map(({ name, label }) => `${name} as ${label}`).join('; ')
    ]),
    [
      ['loss', 'loss as In [1]; In [2]: loss as In [2]'],
      ['acc', 'train/acc as train, In [1]; val/acc as val, In [1]'],
      ['lr', 'In [2]: lr as In [2]']
    ]
  );
  assert.equal(OWN.panels[0].curves.length, 1, 'states are not changed');
  const lines = draw(panels[0], DEFAULTS, new Set()).lines.filter(
    line => line.role === 'mean'
  );
  assert.equal(new Set(lines.map(line => line.colour)).size, 2);
  assert.deepEqual(
    lines.map(line => DASHES[line.dash].length > 0),
    [false, true]
  );
});

test('runs are followed as long as they are chosen', () => {
  let news: (state: IState) => void = () => undefined;
  let ended = 0;
  let changed = 0;
  page.host = {
    saveValues: () => Promise.resolve(true),
    openTab: () => undefined,
    others: () => [{ folder: 'f', job: '1', name: 'In [1]' }],
    follow: (_, told) => {
      news = told;
      return () => ended++;
    }
  };
  const runs = new Runs(() => changed++);
  const other = { folder: 'f', job: '2', name: 'In [2]' };
  runs.choose(other, true);
  assert.deepEqual(
    runs.all(OWN).map(run => run.name),
    ['In [1]'],
    'nothing is known of it yet'
  );
  news(OTHER);
  assert.deepEqual(
    runs.all(OWN).map(run => run.name),
    ['In [1]', 'In [2]']
  );
  runs.choose(other, false);
  assert.deepEqual([runs.all(OWN).length, ended, changed], [1, 1, 3]);
  runs.choose(other, true);
  runs.dispose();
  assert.equal(ended, 2);
  page.host = null;
});

test('the values of a page as CSV, and whether these are all', () => {
  const ranks = {
    ...LOSS,
    name: 'a,"b"',
    values: [
      [1.5, NaN],
      [0.1, 4]
    ]
  };
  const lines = csvOf([
    ['In [1]', state('1', [LOSS])],
    ['In [2]', state('2', [ranks])]
  ]);
  assert.deepEqual(lines.trimEnd().split('\r\n'), [
    'run,metric,rank,step,time,value',
    'In [1],loss,,0,1000000,1',
    'In [1],loss,,1,1000001,2',
    'In [2],"a,""b""",0,0,1000000,1.5',
    'In [2],"a,""b""",1,0,1000000,0.1',
    'In [2],"a,""b""",1,1,1000001,4'
  ]);
  assert.equal(isThinned(OWN), false);
  assert.equal(isThinned(state('1', [{ ...LOSS, stride: 2 }])), true);
});

test('file names have no characters that some systems do not allow', () => {
  assert.equal(fileName('grad/norm: 5 %', 'In [2]'), 'grad-norm-5--In-2-');
});
