import assert from 'node:assert/strict';
import test from 'node:test';
import type { ServerConnection } from '@jupyterlab/services';
import { isOver, Jobs } from '../src/metrics/data/follow';
import { Stream } from '../src/sidebar/server/stream';
import { encode } from './job';

Object.assign(globalThis, { window: globalThis });

/** A websocket whose other end is the test. */
class Socket {
  static last: Socket;

  constructor() {
    Socket.last = this;
  }

  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string | ArrayBuffer }) => void) | null = null;
  onclose: (() => void) | null = null;
  readonly sent: string[] = [];

  send(text: string): void {
    this.sent.push(text);
  }

  close(): void {
    this.sent.push('closed');
  }

  /** Send a frame of a job, as the server does. */
  frame(folder: string, sent: Uint8Array): void {
    const head = new TextEncoder().encode(JSON.stringify({ folder, job: '1' }));
    const bytes = new Uint8Array(4 + head.length + sent.length);
    new DataView(bytes.buffer).setUint32(0, head.length, true);
    bytes.set(head, 4);
    bytes.set(sent, 4 + head.length);
    this.onmessage?.({ data: bytes.buffer });
  }
}

function start(): Jobs {
  const settings = { wsUrl: 'ws://here/', WebSocket: Socket };
  return new Jobs(
    new Stream(settings as unknown as ServerConnection.ISettings)
  );
}

const HERE = { folder: 'here', job: '1' };
const frame = (state: 'running' | 'done', steps: number[]): Uint8Array =>
  encode([{ name: 'loss', steps, values: [steps] }], { state });

test('two views of a job share its frames, and one that is closed does not stop the other', () => {
  const jobs = start();
  const seen: string[] = [];
  const first = jobs.follow(HERE, job => {
    seen.push(`first ${job.state?.panels[0].curves[0].points}`);
  });
  Socket.last.onopen?.();
  assert.deepEqual(Socket.last.sent, [
    '{"watch":"metrics","folder":"here","job":"1"}'
  ]);
  Socket.last.frame('here', frame('running', [1, 2]));
  const second = jobs.follow(HERE, job => {
    seen.push(`second ${job.state?.panels[0].curves[0].points}`);
  });
  assert.equal(Socket.last.sent.length, 1, 'it is not asked for again');
  first.dispose();
  Socket.last.frame('here', frame('running', [1, 2, 3]));
  assert.deepEqual(seen, ['first 2', 'second 2', 'second 3']);
  second.dispose();
  assert.deepEqual(Socket.last.sent.slice(1), [
    '{"unwatch":"metrics","folder":"here","job":"1"}',
    'closed'
  ]);
});

test('a view gets no frames of another job, and hears that its own is unknown', () => {
  const jobs = start();
  const seen: unknown[] = [];
  const view = jobs.follow(HERE, ({ state, unknown }) => {
    seen.push([state?.state, unknown, isOver(state)]);
  });
  Socket.last.onopen?.();
  Socket.last.frame('there', frame('running', [1]));
  Socket.last.frame('here', frame('done', [1]));
  const data = JSON.stringify({ metrics: { ...HERE, unknown: true } });
  Socket.last.onmessage?.({ data });
  assert.deepEqual(seen, [
    ['done', false, true],
    ['done', true, true]
  ]);
  view.dispose();
});

test('a frame that cannot be read becomes an error message', () => {
  const jobs = start();
  let told = '';
  const view = jobs.follow(HERE, ({ trouble }) => {
    told = trouble;
  });
  Socket.last.onopen?.();
  Socket.last.frame('here', encode([], { version: 99 }));
  assert.match(told, /version 99.*Restart the kernel/);
  view.dispose();
});
