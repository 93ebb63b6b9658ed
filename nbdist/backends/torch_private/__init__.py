"""Everything nbdist touches inside torch that torch does not promise to keep.

`tests/test_torch_private.py` looks at each name used here, so that it is the first to fail when a
torch release moves one.
"""

from nbdist.backends.torch_private.groups import group_named

__all__ = ["group_named"]
