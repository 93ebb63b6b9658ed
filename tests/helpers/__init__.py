"""What tests are made of: kernels, ranks, hosts, faults, waits, and a look for what is left."""
