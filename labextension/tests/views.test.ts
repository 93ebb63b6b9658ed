import assert from 'node:assert/strict';
import { test } from 'node:test';
import { snippet, startCode } from '../src/sidebar/acting/magic';
import { LogText } from '../src/sidebar/logs/logText';
import { group, spans } from '../src/sidebar/logs/stackText';

test('a log comes in pieces of any length', () => {
  const text = 'one\ntwo\n\nthree';
  for (let size = 1; size < text.length; size++) {
    const log = new LogText();
    for (let i = 0; i < text.length; i += size) {
      log.add(text.slice(i, i + size));
    }
    assert.deepEqual(log.lines, ['one', 'two', '', 'three']);
  }
});

test('a progress bar takes one line, colours none', () => {
  const log = new LogText();
  log.add('10%\r20%');
  log.add('\r30%');
  assert.deepEqual(log.lines, ['30%']);
  log.add('\r');
  log.add('\n\u001b[31mred\u001b[0m\r\nend');
  assert.deepEqual(log.lines, ['30%', 'red', 'end']);
});

test('a line begins with the colours that are on, however it came', () => {
  const text = 'a\u001b[1;31mb\nc\u001b[2K\nd\u001b[0me\nf';
  for (let size = 1; size <= text.length; size++) {
    const log = new LogText();
    for (let i = 0; i < text.length; i += size) {
      log.add(text.slice(i, i + size));
    }
    assert.deepEqual(log.sources, [
      'a\u001b[1;31mb',
      '\u001b[1;31mc\u001b[2K',
      '\u001b[1;31md\u001b[0me',
      'f'
    ]);
    assert.deepEqual(log.lines, ['ab', 'c', 'de', 'f']);
  }
  const bar = new LogText();
  bar.add('\u001b[32m10%\r20%');
  bar.add('\r30%');
  assert.deepEqual(bar.sources, ['\u001b[32m30%']);
});

test('an empty log is told from one with empty lines', () => {
  const log = new LogText();
  assert.equal(log.empty, true);
  log.add('\n');
  assert.equal(log.empty, false);
});

test('the earliest of very many lines are forgotten', () => {
  const log = new LogText();
  for (let i = 0; i < 120; i++) {
    log.add('x\n'.repeat(1000));
  }
  assert.ok(log.lines.length <= 110_000);
  assert.equal(log.forgotten + log.lines.length, 120_001);
});

test('a search knows no case', () => {
  const log = new LogText();
  log.add('Loss 1\nnothing\nloss 2\n');
  assert.deepEqual(log.find('LOSS'), [0, 2]);
  assert.deepEqual(log.find(''), []);
});

const CELL = `main thread:
  File "Cell In[3]", line 4, in <module>
    dist.all_reduce(torch.ones(1))
  File "/lib/torch/distributed.py", line 3252, in all_reduce
    work.wait()
`;

test('lines of the cell are told from those of libraries', () => {
  const [{ lines }] = group({ 0: CELL });
  assert.deepEqual(
    lines.map(({ cell }) => cell),
    [null, 4, 4, null, null]
  );
});

test('ranks at the same place stand together, the odd one first', () => {
  const groups = group({
    0: CELL,
    1: CELL,
    2: 'main thread: in no cell\n',
    3: CELL
  });
  assert.deepEqual(
    groups.map(({ ranks }) => spans(ranks)),
    ['2', '0-1, 3']
  );
});

test('what a kernel is asked to run', () => {
  const wish = { kernel: 'k', np: 2, backend: 'ddp', gpus: '' };
  assert.equal(
    startCode(wish),
    '%load_ext nbdist\n%dist start -np 2 --backend ddp'
  );
  assert.equal(
    startCode({ ...wish, np: 0, backend: 'none', gpus: '0,2-3' }),
    '%load_ext nbdist\n%dist start --backend none --gpus 0,2-3'
  );
  assert.equal(snippet(2, 'none'), '%%distributed -np 2 --backend none');
});
