"""Tests that need TensorFlow, and Horovod for it: `make test-tensorflow`."""
