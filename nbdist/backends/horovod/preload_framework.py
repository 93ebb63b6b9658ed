"""Imports Horovod for the installed framework, when this module is imported.

The warm process imports it before it forks ranks that use Horovod.
"""

from __future__ import annotations

import contextlib

from nbdist.backends.horovod import engine_ranks
from nbdist.errors import UsageError

with contextlib.suppress(UsageError):  # the rank reports the error
    engine_ranks.framework()
