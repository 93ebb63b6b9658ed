"""Every use of private parts of torch, which may change with any release.

`nbdist.backends.ddp.torch_probe` tests all of them with each build of torch;
`nbdist.backends.ddp.groups_made_anew` works without them.
"""
