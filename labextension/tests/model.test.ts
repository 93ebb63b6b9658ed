import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Signal } from '@lumino/signaling';
import type { Api } from '../src/sidebar/server/api';
import { Model } from '../src/sidebar/server/model';
import { state, type IState } from '../src/sidebar/server/records';
import type { Stream } from '../src/sidebar/server/stream';

/** A stream that sends what a test gives it. */
class Told {
  readonly state = new Signal<this, IState>(this);
  readonly broken = new Signal<this, void>(this);
  wanted = false;
  live = true;
  dispose(): void {
    Signal.clearData(this);
  }
}

test('an answer that comes late does not replace a newer state from the stream', async () => {
  Object.assign(globalThis, { window: globalThis });
  let answer: (told: IState) => void = () => undefined;
  const api = {
    state: () => new Promise<IState>(resolve => (answer = resolve))
  };
  const stream = new Told();
  const model = new Model(api as unknown as Api, stream as unknown as Stream);
  const asked = model.refresh();
  stream.state.emit(state({ time: 2 }));
  answer(state({ time: 1 }));
  await asked;
  assert.equal(model.state?.time, 2);

  const again = model.refresh();
  answer(state({ time: 3 }));
  await again;
  assert.equal(model.state.time, 3);
  model.dispose();
});
