"""What the ledger's checker must catch: a wrapper that locks nothing. Its arguments are dislock's."""

from __future__ import annotations

import os
import sys
import time

token = str(time.time_ns() // 1000)
owner = f"{os.uname().nodename}:{os.getpid()}"
os.execvpe(sys.argv[2], sys.argv[2:], {**os.environ, "DISLOCK_FENCING_TOKEN": token, "DISLOCK_OWNER": owner})
