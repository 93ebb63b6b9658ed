"""Messages between the agents of a job that has several, and their ranks.

Such a job runs in rounds: whenever an agent is lost or restarts its ranks, all ranks begin again.
"""

from __future__ import annotations

import re
import signal

ROUND = "NBDIST_ROUND"
"""Environment name: the number of the round, from 0."""
LOCAL = "NBDIST_LOCAL"
"""Environment name: ``RANK/SIZE`` on this host, if each agent there has one of several ranks."""
LOST = 75
"""Exit code of a rank that failed because other ranks are gone."""
LOST_OTHERS = (LOST, -signal.SIGABRT)
"""How a rank may end that lost other ranks: some libraries abort the process."""
LOST_TEXT = re.compile(
    r"[Cc]onnection (closed|reset|refused|was)|[Bb]roken pipe|recvBytes|[Ss]ocket (is )?closed"
    r"|NCCL communicator was aborted|ncclRemoteError|aborted by nbdist|Horovod has been shut down"
)
"""Error messages of a rank that has lost another rank."""
