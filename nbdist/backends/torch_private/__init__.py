"""Everything nbdist touches inside torch that torch does not promise to keep.

`nbdist.backends.ddp.torch_probe` tries all of it, with each build of torch that is met;
`nbdist.backends.ddp.groups_made_anew` does without.
"""
