"""What the same vectors are played on: the RTL and its gates in simulation, and a board."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from ...hdl.spec import board, regs
from ...hdl.spec.config import RnicConfig
from ...sw_driver import Device, TransportTimeout, UnsupportedDevice
from ...sw_driver.transports.ethernet import BoardEthernet
from ...sw_driver.transports.tcp import BoardTcp
from ...sw_driver.transports.uart import BAUD, UartTransport
from ..engines.engine import ExceptionPacket, Frame, Packet
from ..replay.plan import Plan
from . import gates
from .live import SimTransport
from .play import Link
from .room import Room
from .tcp_sender import TcpSender

__all__ = ["Board", "Simulated", "Target", "of_names", "open_link"]

#: Seconds in which a frame comes back from the PHY.
_PATIENCE = 1.0
_IDLE = regs.pack("STATUS", idle=1)
#: Cycles between two looks of the host's at a simulated device.
_CYCLES = 100


class Target(StrEnum):
    """What plays the vectors."""

    RTL = "rtl"
    GATES = "gates"
    BOARD = "board"


def of_names(names: str, port: str | None) -> list[Target]:
    """The targets of names with commas between.

    Raises
    ------
    ValueError
        They are no such names, or the board and its port do not go together.
    """
    known = [target.value for target in Target]
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in known or found.count(name) > 1:
            raise ValueError(f"--on must be of {', '.join(known)}, each once, not {names!r}")
    if (Target.BOARD in found) != (port is not None):
        raise ValueError("--on board needs --port, the serial port of its host link; no other does")
    return [Target(name) for name in found]


def open_link(
    target: Target,
    port: str | None,
    say: Callable[[str], None],
    plan: Plan,
    waves: Path | None,
    *,
    baud: int = BAUD,
) -> Link:
    """The link to a target for a plan."""
    if target is not Target.BOARD:
        return Simulated(target, plan.config, waves=waves, progress=say)
    assert port is not None
    return Board(port, {stream.number: stream.markers for stream in plan.streams}, baud=baud)


class Simulated(Link):
    """The RTL of a configuration, or its gates, in this process.

    Parameters
    ----------
    target
        RTL or GATES.
    waves
        Where to write a VCD.
    progress
        Told of what takes minutes.
    """

    transport: SimTransport

    def __init__(
        self,
        target: Target,
        config: RnicConfig,
        *,
        waves: Path | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        say = progress or (lambda line: None)
        text = None
        if target is Target.GATES:
            text = gates.verilog(config, say)
            say("gates: the simulator is built, which takes minutes the first time")
        self.transport = SimTransport(config, waves=waves, gates=text)

    def __exit__(self, *_: object) -> None:
        self.transport.close()

    def send(self, operation: Packet | Frame) -> None:
        sim = self.transport
        if isinstance(operation, Frame):
            sim.send_frame(operation.octets, error=operation.error)
        else:
            sim.send(operation.stream, operation.sequence, operation.octets, error=operation.error)

    @property
    def sending(self) -> int:
        return self.transport.sending

    def wait(self) -> None:
        self.transport.run(_CYCLES)

    def exceptions(self) -> list[ExceptionPacket]:
        return self.transport.exceptions()

    def cycles(self) -> tuple[int, dict[str, Any]]:
        return self.transport.cycle, self.transport.cycles()


class Board(Link):
    """A board behind its serial port. Frames reach it by its own PHY, which loops them back; with
    DDP over MPA they have TCP segments.

    Parameters
    ----------
    port
        Of its host link.
    markers
        Whether a stream over MPA has them, by its number.
    baud
        Rate of the host link.
    """

    transport: UartTransport

    def __init__(
        self, port: str, markers: Mapping[int, bool] | None = None, *, baud: int = BAUD
    ) -> None:
        self._packets: list[ExceptionPacket] = []
        self._tcp: BoardTcp | None = None
        self._sender: TcpSender | None = None
        with ExitStack() as stack:
            self.transport = stack.enter_context(UartTransport(port, baud))
            self._ethernet = BoardEthernet(self.transport)
            self._unstarted = self._ethernet.unstarted()
            with suppress(UnsupportedDevice):
                self._tcp = BoardTcp(self.transport)
            stack.enter_context(self._ethernet.looped_back())
            if self._tcp is not None:
                self._sender = stack.enter_context(TcpSender(self._tcp, self._loop, markers or {}))
            self._open = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def room(self) -> Room:
        """What it has for a plan beside its RNIC."""
        (memory,) = self.transport.read_words(board.address("CAP_MEMORY"), 1)
        if self._tcp is None:
            return Room(memory)
        return Room(memory, self._tcp.connections, self._tcp.window)

    def config(self) -> RnicConfig:
        """What the RNIC on the board is like, as far as its capabilities tell."""
        device = Device(self.transport)
        has, sctp = device.query(), device.query_sctp()
        if sctp is None and self._tcp is None:
            raise UnsupportedDevice("the board's RNIC has no SCTP, and no other port for frames")
        config = RnicConfig(
            width=has.width, stags=has.stags, streams=has.streams, buffer_octets=has.buffer,
            queue_depth=has.queue, buffers=has.buffers, pages=has.pages,
        )  # fmt: skip
        if sctp is None:
            return config
        return replace(config, sctp=True, associations=sctp.associations, window=sctp.window)

    def send(self, operation: Packet | Frame) -> None:
        if isinstance(operation, Frame) == (self._sender is not None):
            has, lacks = ("MPA", "SCTP") if self._sender else ("SCTP", "MPA")
            raise UnsupportedDevice(f"the board takes DDP over {has}, and this is for {lacks}")
        if isinstance(operation, Frame):
            self._loop(operation.octets)
        elif self._sender is not None:
            self._sender.give(operation)

    @property
    def sending(self) -> int:
        return 0 if self._sender is None else self._sender.waiting

    def wait(self) -> None:
        # An idle RNIC has taken all that was whole: TCP holds nothing.
        if self._sender is not None and self._sender.waiting:
            if self.transport.read(regs.address("STATUS")) & _IDLE:
                self._sender.send_next()
                return
        super().wait()

    def _loop(self, octets: bytes) -> None:
        """Send a frame, and wait until it came in."""
        before = self._ethernet.seen()
        self._ethernet.send(octets)
        deadline = time.monotonic() + _PATIENCE
        while self._ethernet.seen() == before:
            if time.monotonic() > deadline:
                if self._ethernet.unstarted() != self._unstarted:
                    raise TransportTimeout(
                        "what is sent comes back without a start frame delimiter: check the delays"
                        " of the board's RGMII"
                    )
                raise TransportTimeout(
                    "the PHY does not loop back what is sent: check that its clock runs, and that"
                    " the link is at 1000 Mb/s"
                )

    def serve(self) -> int:
        while (packet := self._ethernet.receive()) is not None:
            stream, sequence, reason, octets = packet
            self._packets.append(ExceptionPacket(stream, sequence, octets, reason))
        return len(self._packets)

    def exceptions(self) -> list[ExceptionPacket]:
        return self._packets
