"""Every use of private parts of torch, which may change with any release.

`nbdist.backends.ddp.torch_probe` tests all of them with each build of torch;
`nbdist.backends.ddp.renew_with_new_groups` works without them.
"""
