"""One run of a cell as others see it: state, output, report, throughput."""
