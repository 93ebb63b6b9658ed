"""What the hub asks of ranks and tells them between cells: variables, stacks, equality."""
