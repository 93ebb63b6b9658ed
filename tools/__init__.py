"""Scripts that the Makefile runs; tests import parts of them."""
