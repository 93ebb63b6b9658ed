import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';
import type { ServerConnection } from '@jupyterlab/services';
import { Stream, type ILogNews } from '../src/sidebar/server/stream';

Object.assign(globalThis, { window: globalThis });

/** A websocket whose other end is the test. */
class Socket {
  static made: Socket[] = [];

  constructor(readonly url: string) {
    Socket.made.push(this);
  }

  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly sent: string[] = [];
  closed = false;

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.closed = true;
  }

  tell(message: object): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }
}

function start(context: TestContext): Stream {
  context.mock.timers.enable({ apis: ['setTimeout'] });
  Socket.made = [];
  const settings = {
    wsUrl: 'ws://here/base/',
    token: 'a b',
    appendToken: true,
    WebSocket: Socket
  };
  return new Stream(settings as unknown as ServerConnection.ISettings);
}

const last = (): Socket => Socket.made[Socket.made.length - 1];

test('it is connected only while somebody looks', context => {
  const stream = start(context);
  assert.equal(Socket.made.length, 0);
  stream.wanted = true;
  assert.equal(last().url, 'ws://here/base/nbdist/api/stream?token=a%20b');
  assert.equal(stream.live, false);
  last().onopen?.();
  assert.equal(stream.live, true);
  assert.deepEqual(last().sent, ['{"watch":"state"}']);
  const told: number[] = [];
  stream.state.connect((_, { time }) => told.push(time));
  last().tell({ state: { time: 5 } });
  assert.deepEqual(told, [5]);
  stream.wanted = false;
  assert.equal(last().closed, true);
  context.mock.timers.tick(100_000);
  assert.equal(Socket.made.length, 1);
});

test('it comes back, and waits longer each time', context => {
  const stream = start(context);
  let broken = 0;
  stream.broken.connect(() => broken++);
  stream.wanted = true;
  for (const wait of [1000, 2000, 4000]) {
    const before = Socket.made.length;
    last().onclose?.();
    assert.equal(stream.live, false);
    context.mock.timers.tick(wait - 1);
    assert.equal(Socket.made.length, before);
    context.mock.timers.tick(1);
    assert.equal(Socket.made.length, before + 1);
  }
  assert.equal(broken, 3);
  last().onopen?.();
  last().tell({ state: {} });
  last().onclose?.();
  context.mock.timers.tick(1000);
  assert.equal(Socket.made.length, 5);
  stream.dispose();
});

test('a log goes on where it was when the connection broke', context => {
  const stream = start(context);
  const place = { process: 'a', job: '1', rank: 0 };
  const told: ILogNews[] = [];
  const watch = stream.follow(place, 7, news => told.push(news));
  last().onopen?.();
  assert.deepEqual(JSON.parse(last().sent[0]), {
    watch: 'log',
    ...place,
    from: 7
  });
  last().tell({ log: { ...place, text: 'x', to: 8 } });
  last().tell({ log: { ...place, rank: 1, text: 'y', to: 99 } });
  assert.deepEqual(
    told.map(({ text }) => text),
    ['x']
  );
  last().onclose?.();
  context.mock.timers.tick(1000);
  last().onopen?.();
  assert.deepEqual(JSON.parse(last().sent[0]), {
    watch: 'log',
    ...place,
    from: 8
  });
  watch.dispose();
  assert.deepEqual(JSON.parse(last().sent[1]), { unwatch: 'log', ...place });
  assert.equal(last().closed, true);
});
