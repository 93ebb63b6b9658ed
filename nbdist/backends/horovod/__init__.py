"""The ``horovod`` backend: Horovod in persistent ranks, with PyTorch or TensorFlow."""
