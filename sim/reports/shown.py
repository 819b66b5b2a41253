"""Shows frames of a capture: their octets, and those that carry an MPA stream."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ..capture.connections import Brought
from ..capture.layers import IpPacket
from ..capture.pcap import Frame
from . import fields

__all__ = ["Shown", "Sources"]

_TAGS = (b"\x81\x00", b"\x88\xa8")


@dataclass(frozen=True)
class Shown:
    """A frame as it is shown.

    If its IP packet does not lie in it in one piece, as after fragments, the frame has the packet
    alone. ``payload`` is where the octets of TCP begin, or the first chunk of SCTP.
    """

    number: int
    time: float
    octets: bytes
    ip: int
    payload: int
    ethernet: bool

    @cached_property
    def layers(self) -> list[fields.Layer]:
        return fields.packet(self.octets, self.number, self.ip, ethernet=self.ethernet)

    def forget(self) -> None:
        """Drops the layers, which take more memory than the octets, until they are asked for."""
        self.__dict__.pop("layers", None)

    @classmethod
    def of(cls, frame: Frame, packet: IpPacket) -> Shown:
        """Returns a frame that has a TCP segment."""
        ip, octets, ethernet = frame.octets.find(packet.octets), frame.octets, packet.plain
        if ip < 0:
            octets, ethernet = packet.frame(), True
            ip = octets.index(packet.octets)
        tcp = ip + len(packet.octets) - len(packet.payload)
        payload = tcp + (packet.payload[12] >> 4) * 4
        return cls(frame.number, frame.time, octets, ip, payload, ethernet and ip >= 14)

    @classmethod
    def of_sctp(cls, number: int, time: float, octets: bytes) -> Shown:
        """Returns a frame with SCTP, as the RNIC gets it."""
        ip = 14
        while octets[ip - 2 : ip] in _TAGS:
            ip += 4
        last = fields.packet(octets, number, ip, ethernet=True)[-1].fields[-1].spans[-1]
        return cls(number, time, octets, ip, last.stop, True)


class Sources:
    """The frames that brought the octets of an MPA stream; the first copy of an octet counts."""

    def __init__(self, brought: Iterable[Brought]) -> None:
        self._pieces: list[tuple[int, int, Brought]] = []  # start, stop; in order, apart
        for each in brought:
            at, end = each.position, each.position + each.length
            index = bisect_right(self._pieces, at, key=_start)
            if index:
                at = max(at, self._pieces[index - 1][1])
            while at < end:
                following = self._pieces[index] if index < len(self._pieces) else (end, end, each)
                if at < (stop := min(end, following[0])):
                    self._pieces.insert(index, (at, stop, each))
                    index += 1
                index, at = index + 1, max(stop, following[1])

    def of(self, start: int, stop: int) -> Iterator[tuple[Brought, int, int]]:
        """Yields the pieces of a range: the frame, and the piece's offsets in its octets."""
        index = max(bisect_right(self._pieces, start, key=_start) - 1, 0)
        while index < len(self._pieces) and (piece := self._pieces[index])[0] < stop:
            begin, end, each = piece
            if end > start:
                yield each, max(begin, start) - each.position, min(end, stop) - each.position
            index += 1


def _start(piece: tuple[int, int, Brought]) -> int:
    return piece[0]
