"""torch.distributed in a rank that stays: joined, freed from a fault, and its groups renewed."""
