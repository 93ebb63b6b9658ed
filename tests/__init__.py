"""Tests: real kernels, real ranks, real collectives."""
