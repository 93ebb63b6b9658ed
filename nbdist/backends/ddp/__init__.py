"""torch.distributed in a persistent rank: join the group, interrupt a collective, renew groups."""
