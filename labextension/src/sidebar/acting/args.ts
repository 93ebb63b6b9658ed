/** The arguments of nbdist's commands; for a missing argument a command asks the user. */

import type { CommandRegistry } from '@lumino/commands';

const KINDS = {
  process: {
    type: 'string',
    description: 'The id of the kernel or keeper, as the panel’s state has it'
  },
  cluster: { type: 'string', description: 'The cluster’s id' },
  job: { type: 'string', description: 'The job’s id' },
  rank: { type: 'integer', description: 'The rank’s number' },
  line: { type: 'integer', description: 'A line of the cell, from 1' },
  path: { type: 'string', description: 'The path of a notebook' }
} as const;

/** Describe the arguments of a command; each may be left out. */
export function describe(
  ...names: (keyof typeof KINDS)[]
): NonNullable<CommandRegistry.ICommandOptions['describedBy']> {
  const properties = Object.fromEntries(names.map(name => [name, KINDS[name]]));
  return { args: { type: 'object', properties } };
}
