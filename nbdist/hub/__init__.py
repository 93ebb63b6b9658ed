"""One thread that knows all ranks and jobs; everything a person sees is a view on it."""
