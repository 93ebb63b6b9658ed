"""Horovod's part for the framework that is here, imported when this module is.

The warm process does that before it forks ranks that use Horovod.
"""

from __future__ import annotations

import contextlib

from nbdist.backends.horovod import engine_ranks
from nbdist.errors import UsageError

with contextlib.suppress(UsageError):  # a rank says what is wrong
    engine_ranks.framework()
