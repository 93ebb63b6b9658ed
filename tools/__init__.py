"""Scripts of the Makefile; tests import what they share with them."""
