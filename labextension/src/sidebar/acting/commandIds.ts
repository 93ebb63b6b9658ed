/** The ids of nbdist's commands. */
export const CommandIDs = {
  show: 'nbdist:show',
  start: 'nbdist:start',
  interrupt: 'nbdist:interrupt',
  stop: 'nbdist:stop',
  restart: 'nbdist:restart-rank',
  stacks: 'nbdist:stacks',
  log: 'nbdist:log',
  metrics: 'nbdist:open-metrics',
  snippet: 'nbdist:copy-snippet',
  attach: 'nbdist:attach',
  cell: 'nbdist:open-cell',
  clean: 'nbdist:clean',
  notebook: 'nbdist:open-notebook',
  refresh: 'nbdist:refresh'
} as const;
