/** The magics that the page writes into a cell. */

/** What is wanted. */
export interface IWish {
  /** The kernel's id. */
  kernel: string;
  /** 0 means one a GPU, or two. */
  np: number;
  backend: string;
  /** `0,2-3`; '' means all. */
  gpus: string;
}

/** What a kernel is asked to run. */
export function startCode({ np, backend, gpus }: IWish): string {
  const flags = [
    np > 0 ? ` -np ${np}` : '',
    ` --backend ${backend}`,
    gpus ? ` --gpus ${gpus}` : ''
  ];
  return `%load_ext nbdist\n%dist start${flags.join('')}`;
}

/** The first line of a cell that runs on such a cluster. */
export function snippet(np: number, backend: string): string {
  return `%%distributed -np ${np} --backend ${backend}`;
}
