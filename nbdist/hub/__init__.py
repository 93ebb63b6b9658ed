"""The hub: one thread that knows all ranks and jobs; every view shows what the hub knows."""
