"""Tests that need torch_xla: `make test-xla`."""
