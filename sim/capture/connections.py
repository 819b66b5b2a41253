"""Sorts a capture's segments into TCP connections, and finds the octets that each receiver
accepted.

A capture shows only in part what its receivers did. Segments are judged by RFC 9293 section 3.10.7
and RFC 5961, from all that can be known of the receiver: earlier segments, its windows, and its
acknowledgements, which also show whether it accepted a segment that looks damaged.
"""

from __future__ import annotations

import struct
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from operator import attrgetter
from typing import NamedTuple

import dpkt

from ...hdl.spec.net import internet_sum
from .layers import IpPacket
from .pcap import Frame
from .spool import Octets, Rows, Spool

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
_MODULO = 1 << 32
#: RFC 7323 section 2.3: the largest shift count of a window.
_LARGEST_SCALE = 14
_STRAY = "a SYN inside the connection, RFC 5961 section 4.2"


class Endpoint(NamedTuple):
    """One end of a TCP connection."""

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


@dataclass(frozen=True)
class Segment:
    """A TCP segment with its header.

    ``sequence`` is the sequence number of ``octets[0]``; it does not count a SYN. ``sound`` is
    whether the checksums are right; None if they were left to the network card, or cannot be
    judged.
    """

    frame: int
    time: float
    source: Endpoint
    destination: Endpoint
    sequence: int
    acknowledged: int
    flags: int
    window: int
    scale: int | None  # the Window Scale option of a SYN
    octets: bytes
    sound: bool | None
    missing: int
    place: int = 0  # of the octets, in a spool

    @property
    def end(self) -> int:
        """The sequence number after the last octet."""
        return (self.sequence + len(self.octets)) % _MODULO


def tcp_segment(frame: Frame, packet: IpPacket) -> Segment | None:
    """Returns the TCP segment of a packet, or None if its header is damaged or incomplete."""
    try:
        tcp = dpkt.tcp.TCP(packet.payload)
    except dpkt.UnpackError:
        return None
    if tcp.__hdr_len__ + len(tcp.opts) < tcp.off * 4:
        return None
    flags = tcp.flags
    return Segment(
        frame=frame.number,
        time=frame.time,
        source=Endpoint(packet.source, tcp.sport),
        destination=Endpoint(packet.destination, tcp.dport),
        sequence=(tcp.seq + bool(flags & SYN)) % _MODULO,
        acknowledged=tcp.ack,
        flags=flags,
        window=tcp.win,
        scale=_scale(tcp.opts) if flags & SYN else None,
        octets=tcp.data,
        sound=_verdict(packet) if tcp.data or flags & FIN else None,
        missing=packet.missing,
    )


class Fin(NamedTuple):
    """A FIN with its own sequence number, which follows that of the last octet.

    ``sound`` is None where the checksum cannot be judged, as in :class:`Segment`.
    """

    frame: int
    sequence: int
    sound: bool | None


def _scale(options: bytes) -> int | None:
    whole = filter(None, dpkt.tcp.parse_opts(options))  # None is an option without its length
    found = dict(whole).get(dpkt.tcp.TCP_OPT_WSCALE, b"")
    return min(found[0], _LARGEST_SCALE) if found else None


def _verdict(packet: IpPacket) -> bool | None:
    """Returns whether the checksums are right.

    None: they were never meant to be (transmit offload), or octets are missing.
    """
    if packet.missing:
        return None
    if not packet.sound and not packet.sum_is_zero:
        return False
    if internet_sum(packet.pseudo_header + packet.payload) == 0xFFFF:
        return True
    # A sender that leaves the checksum to the card writes the sum of the pseudo-header there; Linux
    # omits the length if the card also segments; other senders write 0.
    field_ = int.from_bytes(packet.payload[16:18], "big")
    addresses = packet.pseudo_header[:-4] + struct.pack(">HH", 0, packet.protocol)
    if field_ in (0, internet_sum(packet.pseudo_header), internet_sum(addresses)):
        return None
    return False


def signed(difference: int) -> int:
    """Returns the difference of two sequence numbers as a signed number, from -2^31 on."""
    return (difference + (1 << 31)) % _MODULO - (1 << 31)


def _later(one: int | None, other: int) -> int:
    return other if one is None or signed(other - one) > 0 else one


#: The fields of a kept segment, before its octets: frame, time, sequence and acknowledgment number,
#: flags, window, whether it is sound (-1: not known), missing octets.
_KEPT = struct.Struct("<QdIIHHbI")


class Segments:
    """Segments of one direction, kept in a spool. The options of a SYN are not kept."""

    def __init__(self, spool: Spool, source: Endpoint, destination: Endpoint) -> None:
        self.spool = spool
        self._ends = source, destination
        self._rows = Rows("QI")  # place and octets of each, its header included

    def append(self, segment: Segment) -> None:
        sound = -1 if segment.sound is None else int(segment.sound)
        head = _KEPT.pack(
            segment.frame, segment.time, segment.sequence, segment.acknowledged, segment.flags,
            segment.window, sound, segment.missing,
        )  # fmt: skip
        place = self.spool.put(head + segment.octets)
        self._rows.append(place, len(head) + len(segment.octets))

    def those(self, kept: Callable[[Segment], bool]) -> Segments:
        """Returns the segments for which ``kept`` returns True."""
        found = Segments(self.spool, *self._ends)
        for row, segment in zip(self._rows, self, strict=True):
            if kept(segment):
                found._rows.append(*row)
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Segment]:
        return self.since(0)

    def since(self, number: int) -> Iterator[Segment]:
        """Yields the segments after the first ``number`` of them."""
        for place, length in self._rows.since(number):
            whole = self.spool.get(place, length)
            frame, time, sequence, acknowledged, flags, window, sound, missing = (
                _KEPT.unpack_from(whole)
            )  # fmt: skip
            yield Segment(
                frame, time, *self._ends, sequence, acknowledged, flags, window, None,
                whole[_KEPT.size :], None if sound < 0 else bool(sound), missing,
                place + _KEPT.size,
            )  # fmt: skip


class Brought(NamedTuple):
    """The octets of a frame: ``length`` octets, the first of them at ``position`` of the stream.

    They include octets that an earlier frame had brought.
    """

    frame: int
    position: int
    length: int


class OrderedOctets:
    """Octets in order, which a receiver's TCP hands over; the first copy of an octet counts.

    No octet counts after a FIN that comes before it (RFC 9293 section 3.10.7.4).

    Parameters
    ----------
    spool
        The spool in which the segments' octets lie.
    base
        The sequence number of the first octet.

    Attributes
    ----------
    octets
        The octets in order.
    pieces
        For each frame that made octets available, the frame's number, its time, and the position
        of the first such octet.
    brought
        The fields of :class:`Brought` for the frames that brought octets for the first time.
    after_fin
        How many segments have octets that do not count, because a FIN precedes them.
    closed_in
        The frame of the reset that closes the connection, or None.
    """

    def __init__(self, spool: Spool, base: int) -> None:
        self.octets = Octets(spool)
        self.pieces, self.brought = Rows("QdQ"), Rows("QqQ")
        self._base = base
        self.after_fin = 0
        self.closed_in: int | None = None
        self._fin: tuple[int, int] | None = None  # position and frame
        self._waiting: list[tuple[int, int, int]] = []  # position, place and length

    def take(self, segment: Segment | Fin) -> None:
        """Takes the next segment that the receiver accepted, or the next FIN."""
        octets, waiting = self.octets, self._waiting
        end = len(octets)
        position = end + signed(segment.sequence - self._base - end)
        if isinstance(segment, Fin):
            self._finish(position, segment.frame)
            return
        length = self._before_fin(position, len(segment.octets))
        if position + length <= end:
            return
        self.brought.append(segment.frame, position, length)
        if position > end:
            insort(waiting, (position, segment.place, length), key=lambda piece: piece[0])
            return
        self.pieces.append(segment.frame, segment.time, end)
        octets.append(segment.place + end - position, position + length - end)
        taken = 0
        for start, place, length in waiting:
            if start > (end := len(octets)):
                break
            if start + length > end:
                octets.append(place + end - start, start + length - end)
            taken += 1
        del waiting[:taken]

    def _finish(self, position: int, frame: int) -> None:
        """Takes a FIN, unless octets after it have been handed over, or an earlier one is known."""
        if position < len(self.octets) or (self._fin is not None and self._fin[0] <= position):
            return
        self._fin = position, frame
        shortened = [
            (start, place, self._before_fin(start, length))
            for start, place, length in self._waiting
        ]
        self._waiting = [each for each in shortened if each[2] > 0]

    def _before_fin(self, position: int, length: int) -> int:
        """Returns how many octets of a piece precede the FIN; counts the piece if not all do."""
        if self._fin is None or position + length <= self._fin[0]:
            return length
        self.after_fin += 1
        return max(0, self._fin[0] - position)

    @property
    def unfinished(self) -> str:
        """Why the last FPDU may lack octets."""
        if self._waiting or (self._fin is not None and self._fin[0] > len(self.octets)):
            return "octets missing from the capture leave this FPDU unfinished"
        if self._fin is not None:
            return f"the FIN in frame {self._fin[1]} leaves this FPDU unfinished"
        if self.closed_in is not None:
            return f"the reset in frame {self.closed_in} leaves this FPDU unfinished"
        return "the capture ends in this FPDU"

    def frame_of(self, position: int) -> int:
        """Returns the frame that made the octet at a position available."""
        return self.pieces.column(0)[bisect_right(self.pieces.column(2), position) - 1]

    @property
    def behind_hole(self) -> int:
        """The number of octets that follow missing ones."""
        behind, end = 0, len(self.octets)
        for start, _, length in self._waiting:
            behind += max(0, start + length - max(start, end))
            end = max(end, start + length)
        return behind


@dataclass
class Half:
    """The segments of one direction, and the facts that they state about the other direction."""

    segments: Segments
    taken: Segments  # those that the receiver accepted
    syn: int | None = None  # sequence number of the first octet, from the SYN
    scale: int | None = _LARGEST_SCALE  # window scale; the largest if the SYN is missing
    end: int | None = None  # sequence number after everything that was sent
    next: int | None = None  # sequence number after everything that was sent in order
    lowest: int | None = None  # lowest sequence number sent, except those of SYNs
    finished: bool = False
    fins: list[Fin] = field(default_factory=list)  # the acceptable ones
    acknowledged: int | None = None
    acknowledged_in: int = 0  # the last frame with an acknowledgement
    window: int = 0  # the largest window, not scaled
    closed_in: int | None = None  # the frame of the reset: later segments are not received
    ignored: Counter[str] = field(default_factory=Counter)  # dropped segments, by reason
    played: Counter[str] = field(default_factory=Counter)  # accepted although they look damaged
    doubted: set[int] = field(default_factory=set)  # frames with a bad Acknowledgment Number
    _position: int = 0  # the position of ``next``, counted without wrapping
    _ahead: list[tuple[int, int]] = field(default_factory=list)  # a heap of positions

    @property
    def silent(self) -> bool:
        """True if nothing of this direction was captured except resets."""
        return self.end is None

    def open(self, segment: Segment) -> None:
        """Notes the SYN of this connection."""
        if self.syn is None:
            self.syn, self.scale = segment.sequence, segment.scale

    def add(self, segment: Segment, other: Half) -> None:
        """Adds a segment of this direction; ``other`` is the opposite direction."""
        self.window = max(self.window, segment.window)
        if segment.flags & ACK:
            self._acknowledge(segment, other)
        if self.next is None:
            self.next = segment.sequence
        if not segment.flags & SYN:
            if self.lowest is None or signed(segment.sequence - self.lowest) < 0:
                self.lowest = segment.sequence
        end = segment.end
        if segment.flags & FIN:
            self.finished = True
            end = (end + 1) % _MODULO
        expected = _later(other.acknowledged, self.next)
        outside = other.window and signed(segment.sequence - expected) >= _scaled(other, self)
        if segment.flags & FIN and not outside:
            self.fins.append(Fin(segment.frame, segment.end, segment.sound))
        if segment.octets:
            if outside:
                # RFC 9293 section 3.10.7.4: such a segment is not acceptable.
                self.ignored["outside the receiver's window, RFC 9293 section 3.10.7.4"] += 1
                return
            self.segments.append(segment)
        self.end = _later(self.end, end)
        if segment.sound is not False or not segment.octets:
            self._move_on(segment.sequence, end)

    def _move_on(self, start: int, end: int) -> None:
        assert self.next is not None
        at = self._position + signed(start - self.next)
        heappush(self._ahead, (at, at + (end - start) % _MODULO))
        before = self._position
        while self._ahead and self._ahead[0][0] <= self._position:
            self._position = max(self._position, heappop(self._ahead)[1])
        self.next = (self.next + self._position - before) % _MODULO

    def _acknowledge(self, segment: Segment, other: Half) -> None:
        """Judges the Acknowledgment Number.

        RFC 5961 section 5.2: it is acceptable from SND.UNA - MAX.SND.WND to SND.NXT of the
        receiver.
        """
        number = segment.acknowledged
        not_sent = other.end is not None and signed(number - other.end) > 0
        if not_sent or (
            self.acknowledged is not None
            and signed(number - self.acknowledged) < -_scaled(self, other)
        ):
            self.doubted.add(segment.frame)
        else:
            self.acknowledged = _later(self.acknowledged, number)
            self.acknowledged_in = segment.frame

    def settle(self, other: Half) -> None:
        """Decides which segments the receiver accepted, after the last frame.

        A segment with a wrong checksum, or with an Acknowledgment Number out of range, counts if no
        other segment brings its octets, unless the receiver's acknowledgements show that these
        octets did not arrive.
        """
        came = self.segments.those(lambda each: not self._came_late(each))
        doubtful = came.those(self._is_doubtful)
        # If no checksum at all is right, the capture was taken before the card filled the checksums
        # in.
        offloaded = {each.sound for each in came} - {None} == {False}
        dropped = self._drop(came, doubtful, other, offloaded=offloaded) if doubtful else set()
        self.taken = came.those(lambda each: each.frame not in dropped) if dropped else came
        taken = {each.frame for each in doubtful} - dropped
        self.fins = [
            each
            for each in self.fins
            if (each.frame in taken or offloaded or not self._is_doubtful(each))
            and each.frame not in dropped
            and not self._is_late(each)
            # The receiver acknowledges no octet after a FIN that it accepted.
            and (other.acknowledged is None or signed(other.acknowledged - each.sequence) <= 1)
        ]

    def _drop(
        self, came: Segments, doubtful: Segments, other: Half, *, offloaded: bool
    ) -> set[int]:
        """Returns the frames of the doubtful segments that the receiver did not accept."""
        cover = _Cover(each for each in came if not self._is_doubtful(each))
        dropped = set()
        for each in doubtful:
            why = "a wrong checksum" if each.sound is False else "an acknowledgement out of range"
            silent = other.acknowledged is None or other.acknowledged_in < each.frame
            came_through = silent or signed((other.acknowledged or 0) - each.end) >= 0
            if (offloaded and each.sound is False) or (came_through and not cover.has(each)):
                self.played[why] += 1
            else:
                dropped.add(each.frame)
                self.ignored[f"with {why}"] += 1
        return dropped

    def _is_doubtful(self, segment: Segment | Fin) -> bool:
        return segment.sound is False or segment.frame in self.doubted

    def _is_late(self, segment: Segment | Fin) -> bool:
        return self.closed_in is not None and segment.frame > self.closed_in

    def _came_late(self, segment: Segment) -> bool:
        late = self._is_late(segment)
        if late:
            self.ignored[f"after the reset in frame {self.closed_in}"] += 1
        return late


def _scaled(half: Half, other: Half) -> int:
    """Returns the largest window that a half's sender has stated.

    RFC 7323 section 2.2: windows are scaled only if both SYNs have the option.
    """
    return half.window << (0 if other.scale is None else half.scale or 0)


class _Cover:
    """The ranges of octets that a set of segments covers."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._base: int | None = None
        self._runs: list[tuple[int, int]] = []  # in order, apart
        pieces: list[tuple[int, int]] = []
        for each in segments:
            if self._base is None:
                self._base = each.sequence
            at = signed(each.sequence - self._base)
            if pieces and pieces[-1][1] == at:
                at = pieces.pop()[0]
            pieces.append((at, signed(each.sequence - self._base) + len(each.octets)))
        for start, end in sorted(pieces):
            if self._runs and start <= self._runs[-1][1]:
                self._runs[-1] = self._runs[-1][0], max(end, self._runs[-1][1])
            else:
                self._runs.append((start, end))

    def has(self, segment: Segment) -> bool:
        """Returns True if the segments cover all octets of another one."""
        if self._base is None:
            return False
        at = signed(segment.sequence - self._base)
        run = bisect_right(self._runs, at, key=lambda each: each[0]) - 1
        return run >= 0 and self._runs[run][1] >= at + len(segment.octets)


def in_order(half: Half, base: int) -> OrderedOctets:
    """Returns the octets that the receiver accepted in order.

    ``base`` is the first one's sequence number.
    """
    found = OrderedOctets(half.taken.spool, base)
    found.closed_in = half.closed_in
    for each in by_frame(half.taken, half.fins):
        found.take(each)
    return found


def by_frame(segments: Iterable[Segment], fins: Iterable[Fin]) -> Iterator[Segment | Fin]:
    """Yields segments and FINs in the order of their frames, and a frame's octets before its
    FIN.
    """
    return merge(segments, fins, key=attrgetter("frame"))


@dataclass(eq=False)
class Conversation:
    """One TCP connection, from its SYN, or from the beginning of the capture.

    The half of the first sender comes first.
    """

    spool: Spool
    halves: dict[Endpoint, Half] = field(default_factory=dict)
    reset_in: int | None = None
    ignored: Counter[str] = field(default_factory=Counter)
    #: A SYN that does not fit this connection. If it is answered, it begins another one.
    stray: Segment | None = None

    @property
    def ends(self) -> tuple[Endpoint, Endpoint]:
        one, other = self.halves
        return one, other

    @property
    def octets(self) -> bool:
        """True if any octet was sent."""
        return any(half.segments or half.ignored for half in self.halves.values())

    @property
    def over(self) -> bool:
        return self.reset_in is not None or all(half.finished for half in self.halves.values())

    def settle(self) -> None:
        """Decides which segments were accepted, after the last frame."""
        one, other = self.halves.values()
        one.settle(other)
        other.settle(one)

    def follows(self, segment: Segment) -> bool:
        """Returns False if another connection begins with this segment."""
        if not self.halves:
            return True
        half, other = self.halves[segment.source], self.halves[segment.destination]
        if segment.flags & RST:
            return True
        if segment.flags & SYN and segment.flags & ACK:
            return self._follows_answer(segment, half, other)
        if segment.flags & SYN:
            return self._follows_syn(segment, half, other)
        # If the capture lacks the answer, octets that directly follow a stray SYN show that it was
        # accepted.
        return not (
            self.stray is not None
            and self.stray.source == segment.source
            and segment.octets
            and segment.sequence == self.stray.sequence
            and half.next is not None
            and abs(signed(segment.sequence - half.next)) >= max(_scaled(other, half), 1)
        )

    def _follows_syn(self, segment: Segment, half: Half, other: Half) -> bool:
        if half.syn == segment.sequence and not self.over:
            return True
        if self.over:
            return False
        if half.silent:
            # The first SYN, or a SYN that was captured after the answer to it.
            fits = other.acknowledged in (None, segment.sequence)
        elif half.syn is None:
            fits = half.lowest == segment.sequence  # captured late
        else:
            # A new attempt, if the last one had no answer.
            if other.silent and not half.segments:
                return False
            fits = False
        if not fits:
            # RFC 5961 section 4.2: a SYN within a connection causes a challenge ACK and nothing
            # else.
            if self.stray is None or self.stray.sequence != segment.sequence:
                self.ignored[_STRAY] += 1
            self.stray = segment
        return True

    def _follows_answer(self, segment: Segment, half: Half, other: Half) -> bool:
        stray = self.stray
        if stray is not None and stray.source == segment.destination:
            if segment.acknowledged == stray.sequence and (
                half.syn != segment.sequence or other.syn != stray.sequence
            ):
                self.ignored[_STRAY] -= 1
                return False
        if half.syn == segment.sequence:
            return True
        return not self.over

    def add(self, segment: Segment) -> None:
        """Adds a segment of this connection."""
        if not self.halves:
            ends = segment.source, segment.destination
            for way in (ends, ends[::-1]):
                self.halves[way[0]] = Half(Segments(self.spool, *way), Segments(self.spool, *way))
        half, other = self.halves[segment.source], self.halves[segment.destination]
        if segment.flags & RST:
            self._reset(segment, half, other)
            return
        if segment.flags & SYN and not self._opens(segment, half, other):
            return
        half.add(segment, other)

    def _opens(self, segment: Segment, half: Half, other: Half) -> bool:
        """Returns True if a SYN belongs to this connection."""
        if segment is self.stray:
            return False
        late = half.syn is None and not half.silent
        fits = half.syn == segment.sequence or (
            half.syn is None and (not late or half.lowest == segment.sequence)
        )
        if fits and segment.flags & ACK and other.syn is not None:
            # Data in the SYN may be acknowledged, or not (RFC 7413).
            fits = 0 <= signed(segment.acknowledged - other.syn) <= 1460 * 44
        if not fits:
            self.ignored["a SYN that does not fit the connection"] += 1
            return False
        half.open(segment)
        return True

    def _reset(self, segment: Segment, half: Half, other: Half) -> None:
        """Judges a reset.

        RFC 9293 section 3.10.7: in SYN-SENT a reset counts if it acknowledges the SYN. Later it
        counts if its sequence number is the next that is expected (RFC 5961 section 3.2).
        """
        stray = self.stray
        if stray is not None and stray.source == segment.destination:
            if segment.flags & ACK and segment.acknowledged == stray.sequence:
                self.stray = None  # the stray SYN was refused
                return
        if half.silent and other.syn is not None and other.acknowledged is None:
            good = bool(segment.flags & ACK) and (
                other.end is not None
                and signed(segment.acknowledged - other.syn) >= 0
                and signed(segment.acknowledged - other.end) <= 0
            )
        elif half.next is None:
            good = other.acknowledged in (None, segment.sequence)
        else:
            good = segment.sequence == _later(other.acknowledged, half.next)
        if not good:
            self.ignored["a reset with another sequence number than the next, RFC 5961"
                         " section 3.2"] += 1  # fmt: skip
        elif self.reset_in is None:
            self.reset_in = half.closed_in = other.closed_in = segment.frame


class Connections:
    """Sorts segments into TCP connections."""

    def __init__(self) -> None:
        self.found: list[Conversation] = []
        self._spool = Spool()
        self._current: dict[tuple[Endpoint, Endpoint], Conversation] = {}

    def take(self, segment: Segment) -> None:
        """Takes the capture's next segment."""
        ends = segment.source, segment.destination
        key = ends if ends[0] <= ends[1] else ends[::-1]
        current = self._current.get(key)
        if current is None or not current.follows(segment):
            stray = None if current is None else current.stray
            current = self._current[key] = Conversation(self._spool)
            self.found.append(current)
            if stray is not None and stray is not segment:
                current.add(stray)
        current.add(segment)
