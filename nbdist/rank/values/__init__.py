"""Values of a notebook or a rank: describe, compare and pickle them, or refuse to send them."""
