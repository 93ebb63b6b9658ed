/** Makes frames as the kernel sends them, for the tests: see `nbdist/view/page_state.py`. */

import {
  assemble,
  VERSION,
  type IBar,
  type IFrame,
  type IRank,
  type Mark
} from '../src/metrics/data/state';

/** A metric as a test describes it. */
export interface IMetric {
  name: string;
  label?: string;
  panel?: string;
  steps: number[];
  /** Seconds since 1970; by default one second for each step. */
  times?: number[];
  /** The values of each rank. */
  values: number[][];
  stride?: number;
  marks?: Mark[];
}

/** A rank with unknown values, apart from `more`. */
export function rank(number: number, more: Partial<IRank> = {}): IRank {
  return {
    rank: number,
    host: '',
    device: 'cpu',
    cpu: null,
    memory: null,
    gpu: null,
    gpu_memory: null,
    state: 'line 5',
    step: null,
    ...more
  };
}

/** A bar with unknown values, apart from `more`. */
export function bar(label: string, more: Partial<IBar> = {}): IBar {
  return {
    label,
    depth: 0,
    done: 0,
    total: null,
    rate: null,
    samples: null,
    left: null,
    still: null,
    ...more
  };
}

/** A job's state as a whole frame. */
export function encode(
  metrics: IMetric[],
  more: Partial<IFrame> = {},
  resources: IMetric[] = []
): Uint8Array {
  const doubles: number[] = [];
  const singles: number[] = [];
  const header: IFrame = {
    version: VERSION,
    whole: true,
    folder: '20260101-120000-1',
    job: '1',
    state: 'running',
    title: 'Job 1 on ranks 0-1',
    seconds: 1.5,
    began: 1_000_000,
    bars: [],
    straggler: '',
    ranks: [],
    panels: panelsOf(metrics, doubles, singles),
    resources: panelsOf(resources, doubles, singles),
    floats: doubles.length,
    note: '',
    ...more
  };
  return assemble(header, [
    new Float64Array(doubles),
    new Float32Array(singles)
  ]);
}

function panelsOf(
  metrics: IMetric[],
  doubles: number[],
  singles: number[]
): IFrame['panels'] {
  const panels: IFrame['panels'] = [];
  for (const metric of metrics) {
    const title = metric.panel ?? metric.name;
    let panel = panels.find(each => each.title === title);
    if (!panel) {
      panel = { title, curves: [] };
      panels.push(panel);
    }
    panel.curves.push(curve(metric, doubles, singles));
  }
  return panels;
}

function curve(
  { name, label, steps, times, values, stride = 1, marks = [] }: IMetric,
  doubles: number[],
  singles: number[]
): IFrame['panels'][0]['curves'][0] {
  const known = steps.map((_, i) =>
    values.map(each => each[i]).filter(Number.isFinite)
  );
  const all = known.flat();
  const mean = (some: number[]): number =>
    some.length
      ? some.reduce((sum, value) => sum + value, 0) / some.length
      : NaN;
  const last = mean(known[known.length - 1] ?? []);
  const part = { from: 0, count: steps.length };
  doubles.push(...steps, ...(times ?? steps.map(step => 1_000_000 + step)));
  singles.push(
    ...known.map(mean),
    ...known.map(some => Math.min(...some)),
    ...known.map(some => Math.max(...some))
  );
  const ranks = values.length > 1 ? values : [];
  ranks.forEach(each => singles.push(...each));
  return {
    name,
    label: label ?? name,
    ...part,
    stride,
    points: steps.length * values.length * stride,
    each: ranks.map((_, rank) => ({ rank, ...part, x: false, time: false })),
    marks,
    last: Number.isFinite(last) ? last : null,
    best: all.length ? [Math.min(...all), Math.max(...all)] : [null, null]
  };
}
