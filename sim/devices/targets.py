"""The devices that play the same vectors: the RTL and its gates in simulation, and a board."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any

from ...hdl.spec import board, regs
from ...hdl.spec.config import RnicConfig
from ...sw_driver import Device, TransportTimeout, UnsupportedDevice
from ...sw_driver.transports.ethernet import BoardEthernet
from ...sw_driver.transports.tcp import BoardTcp
from ...sw_driver.transports.uart import BAUD, UartTransport
from ..engines.engine import ExceptionPacket, Frame, Packet
from ..engines.waves import Waves
from ..replay.plan import Plan
from . import gates
from .link import Link
from .live import SimTransport
from .room import Room
from .tcp_sender import TcpSender

__all__ = ["Board", "Simulated", "Target", "of_names", "open_link"]

#: Seconds within which a frame must come back from the PHY.
_PATIENCE = 1.0
_IDLE = regs.pack("STATUS", idle=1)
#: Cycles between two accesses of the host to a simulated device.
_CYCLES = 100


class Target(StrEnum):
    """The devices that can play the vectors."""

    RTL = "rtl"
    GATES = "gates"
    BOARD = "board"


def of_names(names: str, port: str | None) -> list[Target]:
    """Returns the targets of names that commas separate.

    Raises
    ------
    ValueError
        A name is unknown, or only one of the board and its port is given.
    """
    known = [target.value for target in Target]
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in known or found.count(name) > 1:
            raise ValueError(f"--on must name some of {', '.join(known)}, each once, not {names!r}")
    if (Target.BOARD in found) != (port is not None):
        raise ValueError("--on board and --port, the serial port of its host link, go together")
    return [Target(name) for name in found]


def open_link(
    target: Target,
    port: str | None,
    say: Callable[[str], None],
    plan: Plan,
    waves: Waves | None,
    *,
    baud: int = BAUD,
) -> Link:
    """Returns the link to a target for a plan."""
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
        The waveform to be written.
    progress
        Called with a line before each step that takes minutes.
    """

    transport: SimTransport

    def __init__(
        self,
        target: Target,
        config: RnicConfig,
        *,
        waves: Waves | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        say = progress or (lambda line: None)
        text = None
        if target is Target.GATES:
            text = gates.verilog(config, say)
            say("gates: building the simulator, which takes minutes the first time")
        self.transport = SimTransport(config, waves=waves, gates=text, recorded=True)

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
    """A board at a serial port.

    Frames reach the board through its own PHY, which loops them back; with DDP over MPA they carry
    TCP segments.

    Parameters
    ----------
    port
        The serial port of its host link.
    markers
        Whether a stream over MPA has markers, by the stream's number.
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
        """The sizes of the board, beside its RNIC."""
        (memory,) = self.transport.read_words(board.address("CAP_MEMORY"), 1)
        if self._tcp is None:
            return Room(memory)
        return Room(memory, self._tcp.connections, self._tcp.window)

    def config(self) -> RnicConfig:
        """The configuration of the board's RNIC, as far as its capabilities show it."""
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
            raise UnsupportedDevice(f"the board receives DDP over {has}, but this is for {lacks}")
        if isinstance(operation, Frame):
            self._loop(operation.octets)
        elif self._sender is not None:
            self._sender.give(operation)

    @property
    def sending(self) -> int:
        return 0 if self._sender is None else self._sender.waiting

    def wait(self) -> None:
        # An idle RNIC has taken everything that was complete, so TCP holds nothing.
        if self._sender is not None and self._sender.waiting:
            if self.transport.read(regs.address("STATUS")) & _IDLE:
                self._sender.send_next()
                return
        super().wait()

    def _loop(self, octets: bytes) -> None:
        """Sends a frame, and waits until it has come back."""
        before = self._ethernet.seen()
        self._ethernet.send(octets)
        deadline = time.monotonic() + _PATIENCE
        while self._ethernet.seen() == before:
            if time.monotonic() > deadline:
                if self._ethernet.unstarted() != self._unstarted:
                    raise TransportTimeout(
                        "frames come back from the PHY without a start frame delimiter: check the"
                        " delays of the board's RGMII"
                    )
                raise TransportTimeout(
                    "the PHY does not loop frames back: check that its clock runs, and that the"
                    " link is at 1000 Mb/s"
                )

    def serve(self) -> int:
        while (packet := self._ethernet.receive()) is not None:
            stream, sequence, reason, octets = packet
            self._packets.append(ExceptionPacket(stream, sequence, octets, reason))
        return len(self._packets)

    def exceptions(self) -> list[ExceptionPacket]:
        return self._packets
