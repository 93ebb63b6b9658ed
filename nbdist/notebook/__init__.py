"""The Python API that a notebook or a script calls: clusters, launches, comparisons."""
