"""A job, one run of a cell, as its viewers see it: state, output, report, throughput."""
