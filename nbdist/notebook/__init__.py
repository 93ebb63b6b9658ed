"""What a notebook or a script calls: clusters, launches, comparisons. The API is made of it."""
