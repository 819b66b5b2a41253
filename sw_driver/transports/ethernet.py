"""The Ethernet side of a board, reached from the host over the host link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...hdl.spec import board
from ..base.buffers import copy_of
from ..base.checks import instance
from ..base.closing import close_after
from ..base.errors import InvalidRequest, TransportTimeout
from .uart import BoardLink

#: How many seconds the driver waits for the board to do work of microseconds.
_PATIENCE = 1.0
_PHYS = 32
#: The PHY's control register (IEEE 802.3 section 22.2.4.1): 1000 Mb/s, full duplex. With loopback
#: the PHY returns the frames that are sent.
_CONTROL = 0
_LOOPBACK = 1 << 14
_GIGABIT = 1 << 8 | 1 << 6
_COUNTS = ("LINK_FRAMES", "LINK_DAMAGED", "LINK_DROPPED")


class Received(NamedTuple):
    """A packet of the exception stream."""

    stream: int
    sequence: int
    reason: int
    octets: bytes


class BoardEthernet:
    """Sends frames, takes packets of the exception stream, and controls the PHY.

    Parameters
    ----------
    link
        The link to the board.
    """

    def __init__(self, link: BoardLink) -> None:
        instance("a board's link", link, BoardLink)
        self._link = link

    def send(self, octets: bytes) -> None:
        """Sends a frame without FCS, and waits until it has left. A short frame is padded."""
        octets = copy_of(octets)
        if not 14 <= len(octets) <= board.LONGEST:
            raise InvalidRequest(
                f"a frame must have from 14 to {board.LONGEST} octets, not {len(octets)}"
            )
        padded = octets + bytes(-len(octets) % 4)
        words = [int.from_bytes(padded[at : at + 4], "little") for at in range(0, len(padded), 4)]
        self._link.write_words(board.TRANSMIT.address, words)
        self._write("TRANSMIT_LENGTH", len(octets))
        self._write("TRANSMIT_SEND", 1)
        self._until(board.pack("STATUS", transmitting=1), "the frame does not leave")

    def receive(self) -> Received | None:
        """Takes the waiting packet of the exception stream, which makes room for the next
        one; or None.
        """
        if not self._read("STATUS") & board.pack("STATUS", received=1):
            return None
        length, stream, sequence, reason = self._link.read_words(
            board.address("RECEIVED_LENGTH"), 4
        )
        words = self._link.read_words(board.RECEIVED.address, -(-length // 4))
        octets = b"".join(word.to_bytes(4, "little") for word in words)[:length]
        self._write("RECEIVED_POP", 1)
        return Received(stream, sequence, reason, octets)

    def seen(self) -> int:
        """Returns how many frames came from the PHY, damaged ones included."""
        return sum(map(self._read, _COUNTS))

    def unstarted(self) -> int:
        """Returns how many frames had no start frame delimiter, as with wrong RGMII timing."""
        return self._read("LINK_UNSTARTED")

    @contextmanager
    def looped_back(self) -> Iterator[None]:
        """Makes the PHY return the frames that are sent; restores its setting at the end of
        the block.
        """
        phy = next((each for each in range(_PHYS) if self._mdio(each) is not None), None)
        if phy is None:
            raise TransportTimeout("no PHY answers on MDIO: check the board's power and its PHY")
        before = self._mdio(phy)
        assert before is not None
        self._set_mdio(phy, _LOOPBACK | _GIGABIT)
        try:
            yield
        except BaseException as error:
            close_after(error, lambda: self._set_mdio(phy, before))
            raise
        self._set_mdio(phy, before)

    def _mdio(self, phy: int) -> int | None:
        """Returns the control register of a PHY, or None where no PHY answers."""
        self._until(board.pack("STATUS", mdio=1), "MDIO stays busy")
        self._write("MDIO_ADDRESS", board.pack("MDIO_ADDRESS", register=_CONTROL, phy=phy))
        self._write("MDIO_READ", 1)
        self._until(board.pack("STATUS", mdio=1), "MDIO stays busy")
        result = board.unpack("MDIO_RESULT", self._read("MDIO_RESULT"))
        return None if result["silent"] else result["data"]

    def _set_mdio(self, phy: int, value: int) -> None:
        self._write("MDIO_ADDRESS", board.pack("MDIO_ADDRESS", register=_CONTROL, phy=phy))
        self._write("MDIO_DATA", value)
        self._write("MDIO_WRITE", 1)
        self._until(board.pack("STATUS", mdio=1), "MDIO stays busy")

    def _until(self, busy: int, complaint: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self._read("STATUS") & busy:
            if time.monotonic() > deadline:
                raise TransportTimeout(f"{complaint}: reset the board")

    def _read(self, name: str) -> int:
        return self._link.read_words(board.address(name), 1)[0]

    def _write(self, name: str, value: int) -> None:
        self._link.write_words(board.address(name), [value])
