/** Time limits: longer where the machine is slow, or was busy when the tests began. */

const SLOWNESS = Number(process.env.NBDIST_TEST_SLOWNESS ?? 1); // from tests/helpers/waiting.py

/** Convert seconds on an idle machine to milliseconds on this machine. */
export const seconds = (enough: number): number => 1000 * enough * SLOWNESS;
