/** The magics that the page runs, or writes into a cell. */

/** The cluster that the user wants. */
export interface IWish {
  /** The kernel's id. */
  kernel: string;
  /** The number of ranks; 0 means one for each GPU, or two without GPUs. */
  np: number;
  backend: string;
  /** `0,2-3`; '' means all. */
  gpus: string;
}

/** The code that starts a cluster in a kernel. */
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
