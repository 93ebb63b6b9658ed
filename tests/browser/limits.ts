/** Limits of waits: later where the machine is slow, or was busy when the tests began. */

const SLOWNESS = Number(process.env.NBDIST_TEST_SLOWNESS ?? 1); // from tests/helpers/waiting.py

/** Return seconds of an idle machine as milliseconds of this one. */
export const seconds = (enough: number): number => 1000 * enough * SLOWNESS;
