"""Jobs as others see them: state, output, report, throughput."""
