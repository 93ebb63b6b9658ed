"""Horovod in a rank: joined, freed and joined again, with PyTorch or TensorFlow."""
