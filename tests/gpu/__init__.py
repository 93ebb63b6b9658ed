"""Real kernels and real ranks on a GPU: `make test-gpu`."""
