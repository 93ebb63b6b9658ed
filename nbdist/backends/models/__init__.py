"""Models, optimizers and the like in a rank's variables: find, compare with other ranks, copy."""
