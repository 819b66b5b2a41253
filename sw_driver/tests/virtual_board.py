"""A board at a pseudo-terminal: uartbone, the board's address map, and the simulated gateware."""

from __future__ import annotations

import ctypes
import os
import pty
import select
import struct
import threading
import tty
from collections import deque
from collections.abc import Callable
from typing import Any

from ddp_rnic.hdl.spec import board
from ddp_rnic.hdl.spec.sctp import Diversion
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.engines.engine import ExceptionPacket
from ddp_rnic.sim.model.tcp import Diverted, FpduReceived
from ddp_rnic.sw_driver.base.errors import TransportError
from ddp_rnic.sw_driver.tests.virtual_tcp import VirtualTcp
from ddp_rnic.sw_driver.transports.transport import SentFpdu

#: Seconds after which an incomplete command is given up.
_PATIENCE = 0.1
#: The loopback bit of a PHY's control register.
_LOOPBACK = 1 << 14
#: Cycles after which a packet of the exception stream is complete.
_WHOLE = 400

Mangle = Callable[[bytes], bytes]
#: The registers that describe a packet of the exception stream.
_OF_PACKET: dict[str, Callable[[ExceptionPacket], int]] = {
    "LENGTH": lambda packet: len(packet.octets),
    "STREAM": lambda packet: packet.stream,
    "SEQUENCE": lambda packet: packet.sequence,
    "REASON": lambda packet: packet.reason,
}
#: The registers that describe the copy of a sent frame.
_OF_COPY: dict[str, Callable[[SentFpdu], int]] = {
    "LENGTH": lambda frame: len(frame.octets),
    "STREAM": lambda frame: frame.stream,
    "SEQUENCE": lambda frame: frame.sequence,
    "RECORD": lambda frame: frame.record & 0xFFFFFFFF,
    "OFFSET": lambda frame: frame.record >> 32,
}


class VirtualBoard:
    """Serves a port until it is closed.

    Parameters
    ----------
    sim
        The gateware; bus address 0 is the first octet of ``memory``.
    registers
        Values of the board's registers that differ from a sound board's.
    memory
        Octets of placement memory.
    tcp
        The receiver of frames in front of gateware with MPA, or None.

    Attributes
    ----------
    port
        The device to open.
    commands, answers
        Functions that may change a command on its way to the board, and an answer from it.
    spoil
        A function that may change FPDUs on their way to the gateware.
    broken
        How many commands were given up.
    control
        The PHY's control register: with loopback, frames that are sent are received.
    loops
        Whether the PHY can loop back.
    late
        Whether the receive timing is wrong, so that no frame has a start frame delimiter.
    phy
        The PHY's address on MDIO.
    wire
        A function that takes the frames that the gateware sends.
    """

    def __init__(
        self,
        sim: SimTransport,
        *,
        memory: int = 1 << 20,
        registers: dict[str, int] | None = None,
        tcp: VirtualTcp | None = None,
    ) -> None:
        self.memory = bytearray(memory)
        self.commands: Mangle = bytes
        self.answers: Mangle = bytes
        self.spoil: Mangle = bytes
        self.broken = 0
        self._sim, self._tcp = sim, tcp
        self._octets: Any = (ctypes.c_ubyte * memory).from_buffer(self.memory)
        sim.map(0, ctypes.addressof(self._octets), memory)
        self.control = 0x1140
        self.loops = True
        self.late = False
        self.phy = 7
        self.wire: Callable[[bytes], object] = lambda frame: None
        self._copies: deque[SentFpdu] = deque()  # of frames that the host has not taken
        self._frame = bytearray(board.TRANSMIT.size)
        self._taken = len(sim.exceptions())  # how many packets of the exception stream were taken
        self._diverted: list[ExceptionPacket] = []  # frames that TCP forwards to the host
        self._waiting: list[ExceptionPacket] = []
        values = {
            "ID": board.ID, "VERSION": board.VERSION, "CAP_MEMORY": memory,
            "CAP_FRAME": board.LONGEST,
            **dict.fromkeys(
                ("LINK_FRAMES", "LINK_DAMAGED", "LINK_DROPPED", "LINK_UNSTARTED"), 0),
        }  # fmt: skip
        self._values = {
            board.address(name): value for name, value in (values | (registers or {})).items()
        }
        text = b"virtual board".ljust(board.IDENTIFIER_WORDS, b"\0")
        for at, character in enumerate(text):
            self._values[board.BOARD.address + board.IDENTIFIER + 4 * at] = character
        self._master, self._slave = pty.openpty()
        tty.setraw(self._slave)
        self.port = os.ttyname(self._slave)
        self._running = True
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._running:
            self._running = False
            self._thread.join(5)
            os.close(self._master)
            os.close(self._slave)

    def __enter__(self) -> VirtualBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        sent = command = b""
        while self._running:
            if not select.select([self._master], [], [], _PATIENCE)[0]:
                self.broken += bool(command)
                sent = command = b""
                continue
            sent += os.read(self._master, 4096)
            # One read may bring several commands, or a part of one.
            while (length := _length(sent)) and len(sent) >= length:
                command += self.commands(sent[:length])
                sent = sent[length:]
            while (length := _length(command)) and len(command) >= length:
                answer = self._execute(command[:length])
                command = command[length:]
                if answer and (answer := self.answers(answer)):
                    os.write(self._master, answer)

    def _execute(self, command: bytes) -> bytes:
        code, count, address = struct.unpack_from(">BBI", command)
        places = [(address + k * (code in (1, 2))) * 4 for k in range(count)]
        if code in (2, 4):
            return b"".join(self._read(place).to_bytes(4, "big") for place in places)
        if code in (1, 3):
            words = struct.unpack_from(f">{count}I", command, 6)
            for place, word in zip(places, words, strict=True):
                self._write(place, word)
        return b""

    def _read(self, address: int) -> int:
        at, of_rnic = address - board.MEMORY.address, address - board.RNIC.address
        if 0 <= at < len(self.memory):
            return int.from_bytes(self.memory[at : at + 4], "little")
        if 0 <= of_rnic < board.RNIC.size:
            try:
                return self._sim.read(of_rnic)
            except TransportError:
                return board.NOTHING
        at = address - board.RECEIVED.address
        if 0 <= at < board.RECEIVED.size:
            return int.from_bytes(self._waiting[0].octets[at : at + 4], "little")
        at = address - board.SENT.address
        if 0 <= at < board.SENT.size:
            return int.from_bytes(self._copies[0].octets[at : at + 4], "little")
        if address == board.address("STATUS"):
            self._waiting = self._packets()
            if not self._copies:
                self._copies += self._sim.sent_frames()
                for frame in self._copies:
                    self.wire(frame.octets)
            sent = bool(self._copies)
            return board.pack("STATUS", received=bool(self._waiting), sent=sent)
        if address == board.address("MDIO_RESULT"):
            silent = self._values[board.address("MDIO_ADDRESS")] >> 8 != self.phy
            return board.pack("MDIO_RESULT", data=self.control, silent=silent)
        for name, shown in _OF_PACKET.items():
            if address == board.address(f"RECEIVED_{name}"):
                return shown(self._waiting[0])
        for label, told in _OF_COPY.items():
            if address == board.address(f"SENT_{label}"):
                return told(self._copies[0])
        if self._tcp is not None and (value := self._tcp.read(address)) is not None:
            return value
        return self._values.get(address, board.NOTHING)

    def _packets(self) -> list[ExceptionPacket]:
        """Returns the complete packets of the exception stream that the host has not taken."""
        begun = len(self._sim.exceptions())
        self._sim.run(_WHOLE)
        return self._diverted + self._sim.exceptions()[self._taken : begun]

    def _send(self) -> None:
        """Sends the frame, padded: it is looped back, or lost."""
        octets = bytes(self._frame[: self._values[board.address("TRANSMIT_LENGTH")]])
        if self.control & _LOOPBACK and self.late:
            self._values[board.address("LINK_UNSTARTED")] += 1
        elif self.loops and self.control & _LOOPBACK:
            self._receive(octets.ljust(board.SHORTEST, b"\0"))
            self._values[board.address("LINK_FRAMES")] += 1

    def _receive(self, octets: bytes) -> None:
        """Receives a frame."""
        if self._tcp is None:
            self._sim.send_frame(octets)
            return
        for event in self._tcp.receiver.receive(octets):
            if isinstance(event, FpduReceived):
                self._sim.send(event.stream, event.position, self.spoil(event.octets))
            elif isinstance(event, Diverted):
                self._diverted.append(ExceptionPacket(0, 0, event.octets, Diversion.FRAME))

    def _write(self, address: int, word: int) -> None:
        at, of_rnic = address - board.MEMORY.address, address - board.RNIC.address
        if 0 <= at < len(self.memory):
            self.memory[at : at + 4] = word.to_bytes(4, "little")
        elif 0 <= of_rnic < board.RNIC.size:
            try:
                self._sim.write(of_rnic, word)
            except TransportError:
                self.broken += 1
        elif 0 <= (at := address - board.TRANSMIT.address) < len(self._frame):
            self._frame[at : at + 4] = word.to_bytes(4, "little")
        elif address == board.address("TRANSMIT_SEND"):
            self._send()
        elif address == board.address("RECEIVED_POP"):
            if self._diverted:
                del self._diverted[0]
            else:
                self._taken += 1
        elif address == board.address("SENT_POP"):
            self._copies.popleft()
        elif address == board.address("MDIO_WRITE"):
            if self._values[board.address("MDIO_ADDRESS")] >> 8 == self.phy:
                self.control = self._values[board.address("MDIO_DATA")]
        elif self._tcp is None or not self._tcp.write(address, word):
            self._values[address] = word


def _length(command: bytes) -> int:
    """Returns the octets of the command that begins so, or 0 while that is unknown."""
    if len(command) < 6:
        return 0
    return 6 + 4 * command[1] * (command[0] in (1, 3))
