"""The audit log: a line of JSON for each decision."""

from __future__ import annotations

import json
import time
from typing import TextIO


class Audit:
    """Writes what was decided, about whom. There are no Steering Tags in it.

    Where the file takes nothing for a while, as on a full disk, the next line that it takes says
    how many were ``lost``.

    Parameters
    ----------
    file
        Where to.
    """

    def __init__(self, file: TextIO) -> None:
        self._file, self._lost = file, 0

    def write(self, event: str, uid: int, pid: int, **details: str | int) -> None:
        """A decision: connect, refuse, register, revoke, stop or disconnect."""
        line = {"time": round(time.time(), 6), "event": event, "uid": uid, "pid": pid, **details}
        if self._lost:
            line["lost"] = self._lost
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self._lost = 0
        except OSError:
            self._lost += 1
