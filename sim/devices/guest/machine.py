"""Runs the guest under QEMU, and commands in the guest."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Self

from ....flow.tools import ToolError
from .ethernet import GUEST_MAC, Ethernet
from .image import Image

#: The address at which the guest finds this machine's loopback.
HOST = "10.0.2.2"
_ADDRESS = "10.0.2.15"
#: The guest starts in 10 seconds on an idle machine, and in a minute on a busy one.
_START = 300.0
_END = re.compile(rb"(?:^|\n)=== (\d+)\r?\n")


def check_qemu() -> None:
    """Raises :class:`ToolError` if there is no QEMU."""
    if shutil.which("qemu-system-x86_64") is None:
        raise ToolError("QEMU is missing, which runs the guest: install qemu-system-x86")


class Output(NamedTuple):
    """The exit status of a command in the guest, and the text that the command has printed."""

    status: int
    text: str


class Guest:
    """A running guest. ``async with`` starts the guest, and ends it.

    Parameters
    ----------
    image
        The files from :func:`.image.load`.
    ports
        The TCP ports of the guest that this machine shall reach; :meth:`address` says where.
    ethernet
        If given, the guest has a second network device, ``eth1``, on that Ethernet.

    Attributes
    ----------
    process
        QEMU, once the guest was started.
    """

    def __init__(
        self, image: Image, ports: Iterable[int] = (), ethernet: Ethernet | None = None
    ) -> None:
        self._image, self._ethernet = image, ethernet
        self._ports = {port: _free_port() for port in ports}
        self.process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    def address(self, port: int) -> tuple[str, int]:
        """Returns the host and the port at which this machine reaches a port of the guest."""
        return "127.0.0.1", self._ports[port]

    async def __aenter__(self) -> Self:
        check_qemu()
        self.process = await asyncio.create_subprocess_exec(
            *_command(self._image, self._ports, self._ethernet),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Ctrl-C reaches this program alone, which then ends the guest.
            start_new_session=True,
        )
        try:
            output = await self._output(_START)
            if output.status:
                raise ToolError(f"the guest could not start siw: {output.text.strip()}")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def run(self, line: str, timeout: float = 120) -> Output:
        """Runs a line of shell in the guest, and returns its outcome.

        A command that ends with ``&`` runs on; its output must go to a file of the guest.
        """
        assert self.process is not None and self.process.stdin is not None
        async with self._lock:
            self.process.stdin.write(line.encode() + b"\n")
            await self.process.stdin.drain()
            return await self._output(timeout)

    async def _output(self, timeout: float) -> Output:
        """Reads until the guest reports a command's status."""
        assert self.process is not None and self.process.stdout is not None
        octets = bytearray()
        try:
            async with asyncio.timeout(timeout):
                while (end := _END.search(octets)) is None:
                    more = await self.process.stdout.read(4096)
                    if not more:
                        raise ToolError(f"the guest has ended: {_last(octets)}")
                    octets += more
        except TimeoutError:
            raise ToolError(
                f"the guest has not answered within {timeout:.0f} seconds: {_last(octets)}"
            ) from None
        return Output(int(end[1]), octets[: end.start()].decode(errors="replace"))


def _last(octets: bytearray) -> str:
    """Returns the last line of an output."""
    lines = octets.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _command(image: Image, ports: dict[int, int], ethernet: Ethernet | None) -> list[str]:
    """Returns the command that runs the guest.

    The kernel kills the guest when this program ends in any way, because setpriv asks for that.
    """
    forwarded = "".join(
        f",hostfwd=tcp:127.0.0.1:{here}-{_ADDRESS}:{there}" for there, here in ports.items()
    )
    # QEMU emulates the processor: what a machine offers to speed that up need not work there.
    # A second processor would make a busy machine slower.
    # siw takes octets as TCP has cut them; with offloads, QEMU's network would cut them elsewhere.
    offloads = ("csum", "guest_csum", "gso", "host_tso4", "guest_tso4", "mrg_rxbuf")
    device = ",".join(["virtio-net-pci", *(f"{each}=off" for each in offloads)])
    second = []
    if ethernet is not None:
        second = ["-netdev", f"{ethernet.options},id=net1"]
        second += ["-device", f"{device},netdev=net1,mac={GUEST_MAC}"]
    return [
        *("setpriv", "--pdeathsig", "KILL"),
        *("qemu-system-x86_64", "-machine", "pc,accel=tcg", "-cpu", "max"),
        *("-m", "512", "-nodefaults", "-no-reboot", "-display", "none"),
        *("-kernel", str(image.kernel), "-initrd", str(image.filesystem)),
        *("-append", "console=ttyS0 quiet loglevel=1 panic=-1 no_timer_check"),
        *("-netdev", f"user,id=net{forwarded}", "-device", f"{device},netdev=net", *second),
        *("-serial", "stdio"),
    ]
