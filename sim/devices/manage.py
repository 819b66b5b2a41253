"""``rnic prm``: serves a device through the resource manager; a name says how the device is
reached.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType

from ...sw_driver import Device, InvalidRequest, Transport
from ...sw_driver.prm import Manager, Policy
from ...sw_driver.prm.audit import Audit, Lines, LogFile
from ...sw_driver.transports.mapped import MappedTransport, Pagemap, UDmaBuf
from ...sw_driver.transports.uart import BAUD, UartTransport

#: The names by which a user says how a device is reached.
WAYS = "uart:PORT, mapped:FILE, udmabuf:FILE,DEVICE or sim"


def transport_of(name: str, baud: int | None = None, pages: Sequence[Path] = ()) -> Transport:
    """Returns the transport to a device of this name.

    ``baud`` is the rate of a serial port; ``pages`` are the files of the first doorbell pages.
    """
    way, _, where = name.partition(":")
    if way == "uart" and where:
        return UartTransport(where, baud or BAUD)
    if baud is not None:
        raise InvalidRequest(f"--baud is only for a device uart:PORT, not for {name!r}")
    if way == "mapped" and where:
        return MappedTransport(where, Pagemap(), pages=pages)
    if pages:
        raise InvalidRequest(f"--page is only for a device mapped:FILE, not for {name!r}")
    if way == "udmabuf" and where.count(",") == 1:
        path, _, device = where.partition(",")
        return MappedTransport(path, UDmaBuf(device))
    if name == "sim":
        from .live import SimTransport

        return SimTransport()
    raise InvalidRequest(f"a device must be {WAYS}, not {name!r}")


def _log(path: Path | None) -> AbstractContextManager[Lines]:
    """Returns the file that the audit log is written to."""
    return nullcontext(sys.stderr) if path is None else LogFile(path)


def serve(
    device: str,
    path: Path,
    policy: Policy,
    log: Path | None,
    *,
    baud: int | None = None,
    pages: Sequence[Path] = (),
) -> None:
    """Owns a device and serves clients, until SIGINT or SIGTERM."""
    with (
        _log(log) as file,
        transport_of(device, baud, pages) as transport,
        Device(transport).open() as context,
        Manager(context, path, policy, Audit(file)) as manager,
    ):

        def end(number: int, frame: FrameType | None) -> None:
            manager.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        # A collection that visits the objects of all modules would stop all clients for 60 ms.
        gc.collect()
        gc.freeze()
        print(f"serving {device} at {path}", flush=True)
        manager.serve()
