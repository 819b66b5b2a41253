"""Finds the MPA streams of a capture as their receivers saw them, and the frames with SCTP.

:func:`read_capture` finds MPA start-up on any port, in any TCP connection. For each direction of
such a connection it gives the octets after start-up, in order, each with the frame that made it
available to the receiver. The order of frames over all directions is the order of events.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, overload

from ...hdl.spec.net import SCTP_UDP_PORT
from ..model.events import LlpError, ProtocolError
from ..model.mpa import MpaReceiver, StartupFrame
from .connections import (
    Brought,
    Connections,
    Conversation,
    Endpoint,
    Half,
    OrderedOctets,
    in_order,
    signed,
    tcp_segment,
)
from .layers import TCP, IpPacket, Packets
from .pcap import CaptureError, Frame, LeftOut, Unread, counted, opening, read_frames
from .piped import Piped, Stopped, name_of, piped
from .sctp_assumed import with_set_up
from .sctp_frames import SctpFrame, kept_frames, sctp_frame, sctp_in_udp

__all__ = [
    "Assumption",
    "Capture",
    "CaptureError",
    "Chunk",
    "Chunks",
    "Connection",
    "Direction",
    "Endpoint",
    "Story",
    "Watch",
    "read_capture",
]

_REQUEST_KEY = b"MPA ID Req Frame"
_REPLY_KEY = b"MPA ID Rep Frame"
_LONGEST_STARTUP = 20 + 512  # octets, RFC 5044 section 7.1.1
_MARKER_SPACING = 512  # RFC 5044 section 4.3
_MOST_NAMED = 3  # how many of the connections that are left out are named


@dataclass(frozen=True)
class Chunk:
    """Octets of one direction that a frame made available in order.

    ``position`` is that of the first octet in the MPA stream; position 0 is the first octet after
    start-up.
    """

    frame: int
    time: float
    position: int
    octets: bytes


@dataclass(frozen=True)
class Direction:
    """One direction of a connection after MPA start-up: a DDP Stream into ``destination``.

    ``crc`` and ``markers`` are as negotiated (RFC 5044 section 7.1): CRC if either side asked for
    it, markers if the receiver did. ``behind_hole`` counts captured octets that follow octets
    missing from the capture. ``assumed``: the capture lacks the stream's beginning. ``brought``
    lists the frames with the octets, in positions of the MPA stream. ``msns``: the octets follow
    others that are known, and this is the next MSN on each queue. ``after_fin`` counts the segments
    with octets after a FIN, and ``unfinished`` says why the last FPDU may lack octets.
    """

    source: Endpoint
    destination: Endpoint
    crc: bool
    markers: bool
    chunks: Sequence[Chunk]
    behind_hole: int = 0
    assumed: bool = False
    brought: Iterable[Brought] = ()
    msns: tuple[tuple[int, int], ...] | None = None
    after_fin: int = 0
    unfinished: str = "the capture ends in this FPDU"

    @property
    def octets(self) -> bytes:
        """All octets after start-up."""
        return b"".join(chunk.octets for chunk in self.chunks)

    def __str__(self) -> str:
        return f"{self.source} > {self.destination}"


@dataclass(frozen=True)
class Connection:
    """A TCP connection that went through MPA start-up. The initiator's direction comes first.

    A start-up frame that the capture lacks has its assumed contents.
    """

    request: StartupFrame
    reply: StartupFrame
    directions: tuple[Direction, Direction]

    @property
    def initiator(self) -> Endpoint:
        return self.directions[0].source

    @property
    def responder(self) -> Endpoint:
        return self.directions[0].destination

    @property
    def rejected(self) -> bool:
        return self.reply.reject


@dataclass(frozen=True)
class Assumption:
    """The user's statement about connections whose MPA start-up is not in the capture.

    Parameters
    ----------
    source
        The sender of the direction that the statement is about; None for every direction.
    at
        Octets of TCP payload before the first FPDU.
    crc
        Whether CRC is in use.
    markers
        Octets from the first FPDU to the first marker, or None without markers.
    sctp
        SCTP associations, and sessions on them, existed before the capture began. The statement
        says nothing about MPA then.
    """

    source: Endpoint | None = None
    at: int = 0
    crc: bool = True
    markers: int | None = None
    sctp: bool = False

    @classmethod
    def parse(cls, text: str) -> Assumption:
        """Reads the text of the option ``--assume``.

        >>> Assumption.parse("from=10.0.0.1:7,at=20,no-crc,markers=100")
        Assumption(source=Endpoint(address='10.0.0.1', port=7), at=20, crc=False, markers=100,
            sctp=False)
        """
        if text.strip() == "sctp":
            return cls(sctp=True)
        source, at, crc, markers = None, 0, True, None
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            match name:
                case "fpdu" | "crc" if not value:
                    pass
                case "no-crc" if not value:
                    crc = False
                case "at" if value == "first" or value.isdecimal():
                    at = 0 if value == "first" else int(value)
                case "markers" if value.isdecimal() and int(value) < _MARKER_SPACING:
                    markers = int(value)
                case "from" if (end := _endpoint(value)) is not None:
                    source = end
                case _:
                    raise CaptureError(
                        f"--assume {text!r}: {part.strip()!r} must be one of sctp, fpdu, at=OCTETS,"
                        " crc, no-crc, markers=OCTETS (less than 512), from=ADDRESS:PORT"
                    )
        return cls(source, at, crc, markers)

    def __str__(self) -> str:
        markers = "no markers" if self.markers is None else (
            f"the first marker {self.markers} octets after its beginning")  # fmt: skip
        crc = "CRC" if self.crc else "no CRC"
        return f"an FPDU begins {self.at} octets after the first captured one, {crc}, {markers}"


def _endpoint(text: str) -> Endpoint | None:
    address, _, port = text.rpartition(":")
    try:
        parsed = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return Endpoint(str(parsed), int(port)) if port.isdecimal() else None


@dataclass(frozen=True)
class Capture:
    """A capture's MPA connections in the order of their first frames, and its frames with SCTP.

    ``left_out`` lists the parts that are not played; ``notes`` are sentences about assumptions.
    """

    path: Path
    frames: int
    connections: tuple[Connection, ...]
    notes: tuple[str, ...] = ()
    sctp: Sequence[SctpFrame] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def directions(self) -> list[Direction]:
        """Both directions of every connection, in order."""
        return [direction for connection in self.connections for direction in connection.directions]

    @property
    def addresses(self) -> list[str]:
        """The addresses of the receiving hosts of all connections."""
        return list(dict.fromkeys(direction.destination.address for direction in self.directions))

    def check(self) -> None:
        """Raises :class:`CaptureError`, with the reason, if the capture cannot have any DDP
        Segment.
        """
        if self.sctp or any(direction.chunks for direction in self.directions):
            return
        raise CaptureError(f"{name_of(self.path)} has no DDP over TCP or SCTP: {self.reason()}")

    def reason(self) -> str:
        """Returns why nothing, or nothing more, is played."""
        left = f"left out: {', '.join(map(str, self.left_out))}" if self.left_out else ""
        found = "; ".join(filter(None, (*self.notes, left)))
        if found:
            return found
        return "it holds no TCP connection and no SCTP" if self.frames else "it holds no frame"


def read_capture(
    path: Path | str,
    *,
    assumptions: Sequence[Assumption] = (),
    sctp_ports: Collection[int] = (),
    watch: Watch | None = None,
) -> Capture:
    """Reads a pcap or pcapng file.

    Frames without TCP or SCTP over IP are skipped, and so are connections without MPA start-up;
    ``left_out`` lists them.

    Parameters
    ----------
    assumptions
        The user's statements about connections whose start-up is not in the capture.
    sctp_ports
        UDP ports of SCTP, besides 9899.
    watch
        Gets the connections during the reading, and may end it.

    Raises
    ------
    CaptureError
        The file is missing or is not a capture.
    """
    unread, watch = Unread(), watch or Watch()
    return capture_of(
        watch.frames(Path(path), unread),
        Path(path),
        unread,
        assumptions=assumptions,
        sctp_ports=sctp_ports,
        watch=watch,
    )


class Watch:
    """Watches the reading of a capture, and may end it.

    Parameters
    ----------
    pause
        This function gets the watch whenever a pipe has no more octets yet.

    Attributes
    ----------
    connections, sctp
        The TCP connections and the frames with SCTP that were found so far.
    stopped, over
        Whether :meth:`stop` was called, and whether there was no reading left to end.
    """

    def __init__(self, pause: Callable[[Watch], None] | None = None) -> None:
        self.connections = Connections()
        self.sctp = kept_frames()
        self.stopped = self.over = self._read = False
        self._pause = pause
        self._input: Piped | None = None

    def stop(self) -> None:
        """Ends the reading with the frame that is being read."""
        self.over = self.stopped or self._read
        self.stopped = True
        if self._input is not None:
            self._input.stop()

    def frames(self, path: Path, unread: Unread) -> Iterator[Frame]:
        """Yields the frames of a file or a pipe until the reading is stopped."""
        with opening(path):
            self._input = piped(path)
        if self._input is not None:
            self._input.pause = self._pause and partial(self._pause, self)
        number = 0
        try:
            for frame in read_frames(path, unread):
                if self.stopped:
                    raise Stopped
                yield frame
                number = frame.number
        except Stopped:
            why = f"not read, because of an interrupt after frame {number}"
            unread.left_out.append(LeftOut(1, "rest of the capture", why))
        finally:
            self._read = True
            if self._input is not None:
                self._input.pause = None


def capture_of(
    frames: Iterable[Frame],
    path: Path,
    unread: Unread | None = None,
    *,
    assumptions: Sequence[Assumption] = (),
    sctp_ports: Collection[int] = (),
    watch: Watch | None = None,
) -> Capture:
    """Finds the MPA connections and the SCTP in frames; ``path`` is their name in messages."""
    unread = unread or Unread()
    count = 0
    ports = {SCTP_UDP_PORT, *sctp_ports}
    unused = {*sctp_ports}
    watch = watch or Watch()
    connections, sctp = watch.connections, watch.sctp
    packets = Packets()
    rest = _Rest()
    for frame in frames:
        count += 1
        packet = packets.take(frame)
        if packet is None:
            continue
        if (udp := packet.udp()) is not None:
            unused.difference_update(udp[:2])
        if (found := sctp_frame(frame, packet, ports)) is not None:
            sctp.append(found)
        elif packet.protocol != TCP:
            packets.pass_over(packet)
            rest.look_for_sctp(packet)
        elif (segment := tcp_segment(frame, packet)) is None:
            rest.damaged += 1
        else:
            rest.cut += bool(segment.missing)
            rest.no_sum += packet.sum_is_zero
            connections.take(segment)
    found_connections = []
    story = Story(assumptions)
    for conversation in connections.found:
        connection = story.connection(conversation)
        if connection is not None:
            found_connections.append(connection)
    if packets.joined:
        story.notes.append(f"put together of fragments: {counted(packets.joined, 'IP packet')}")
    story.note_unused()
    story.notes += [f"--sctp-port {port}: no datagram has this port" for port in sorted(unused)]
    assumed = with_set_up(sctp, any(said.sctp for said in assumptions))
    return Capture(
        path,
        count,
        tuple(found_connections),
        (*unread.notes, *story.notes, *assumed.notes, *rest.notes()),
        assumed.frames,
        (
            *unread.left_out,
            *story.left_out(),
            *assumed.left_out,
            *rest.left_out(),
            *packets.left_out(),
        ),
    )


@dataclass
class _Rest:
    """Counts packets that have a defect, or cannot be played for another reason."""

    damaged: int = 0
    cut: int = 0
    no_sum: int = 0
    other_ports: Counter[int] = field(default_factory=Counter)

    def look_for_sctp(self, packet: IpPacket) -> None:
        """Counts a packet of UDP that holds SCTP although its port does not indicate it."""
        if (port := sctp_in_udp(packet)) is not None:
            self.other_ports[port] += 1

    def notes(self) -> Iterator[str]:
        for port, count in sorted(self.other_ports.items()):
            yield (
                f"SCTP in {counted(count, 'datagram')} of UDP port {port} (RFC 6951):"
                f" give --sctp-port {port} to play it"
            )
        if self.no_sum:
            yield (
                f"{counted(self.no_sum, 'TCP segment')} with the IPv4 header checksum 0, which was"
                " left to the network card: played"
            )

    def left_out(self) -> Iterator[LeftOut]:
        if self.damaged:
            yield LeftOut(self.damaged, "frame", "a damaged or cut TCP header")
        if self.cut:
            yield LeftOut(self.cut, "segment end", "of TCP, cut off by the snapshot length")


# -- MPA start-up --


class _Startup(NamedTuple):
    frame: StartupFrame
    stream: OrderedOctets
    end: int  # position of the octet after the frame


class _Settings(NamedTuple):
    crc: bool
    markers: bool


class Story:
    """Finds the MPA connections in TCP connections, and notes their defects."""

    def __init__(self, assumptions: Sequence[Assumption]) -> None:
        self._assumptions = assumptions
        self._matched: set[Assumption] = set()
        self.notes: list[str] = []
        self._segments: list[LeftOut] = []
        self._without: list[LeftOut] = []  # connections with nothing to play

    def left_out(self) -> list[LeftOut]:
        without = self._without
        if len(without) > _MOST_NAMED:
            more = len(without) - _MOST_NAMED
            without = [
                *without[:_MOST_NAMED],
                LeftOut(more, "further TCP connection", "nothing to play, for such reasons"),
            ]
        return [*without, *self._segments]

    def note_unused(self) -> None:
        """Notes the statements about streams that the capture does not have."""
        for said in dict.fromkeys(self._assumptions):
            if not said.sctp and said not in self._matched:
                source = f" from {said.source}" if said.source else ""
                self.notes.append(
                    f"--assume changes nothing: no TCP stream{source} lacks its MPA start-up"
                    f" ({said})"
                )

    def _leave(self, reason: str) -> None:
        self._without.append(LeftOut(1, "TCP connection", reason))

    def connection(self, conversation: Conversation) -> Connection | None:
        """Returns the MPA connection in a TCP connection, or None."""
        if not conversation.halves:
            return None
        conversation.settle()
        found = self._connection(conversation)
        if found is not None and not found.rejected:
            self._of_segments(conversation, found)
        return found

    def _connection(self, conversation: Conversation) -> Connection | None:
        one, other = conversation.ends
        halves = conversation.halves
        name = f"{one} > {other}"
        refused: dict[Endpoint, str] = {}
        for initiator, responder in ((one, other), (other, one)):
            request = _find_startup(halves[initiator], _REQUEST_KEY, refused, initiator)
            reply = _find_startup(halves[responder], _REPLY_KEY, refused, responder)
            if refused:
                break
            if request is not None and reply is not None:
                return self._complete(initiator, responder, request, reply)
            if request is not None:
                return self._without_reply(initiator, responder, request, halves)
            if reply is not None:
                return self._without_request(initiator, responder, reply, halves[initiator])
        if refused:
            end, why = next(iter(refused.items()))
            self._leave(f"{end} > {other if end == one else one}: {why}")
            return None
        if not any(half.taken for half in halves.values()):
            if conversation.octets:
                self._leave(f"{name}: none of its octets is taken")
            else:
                self.notes.append(f"{name}: no octet was sent in this TCP connection")
            return None
        directions = [self._assumed(conversation, end) for end in (one, other)]
        if any(direction.chunks for direction in directions):
            one_way, back = directions
            return Connection(
                StartupFrame(kind="request", crc=one_way.crc, markers=back.markers),
                StartupFrame(kind="reply", crc=one_way.crc, markers=one_way.markers),
                (one_way, back),
            )
        if any(half.taken and half.syn is None for half in halves.values()):
            self._leave(
                f"{name}: the capture begins in mid-connection, with no MPA start-up;"
                " give an FPDU's place with --assume fpdu,at=OCTETS,crc (see rnic sim --help)"
            )
        else:
            self._leave(f"{name}: no MPA start-up in this TCP connection")
        return None

    def _complete(
        self, initiator: Endpoint, responder: Endpoint, request: _Startup, reply: _Startup
    ) -> Connection | None:
        name = f"{initiator} > {responder}"
        # RFC 5044 section 7.1.1: CRCs are used if either side wants them; each side says whether it
        # wants to receive markers.
        crc = request.frame.crc or reply.frame.crc
        play = not reply.frame.reject
        if not play:
            self._leave(f"{name}: the MPA Reply rejects the connection")
        elif (request.frame.enhanced is None) != (reply.frame.enhanced is None):
            enhanced = ("Request", "Reply")[request.frame.enhanced is None]
            self._leave(
                f"{name}: of MPA Request and Reply, only the {enhanced} is an enhanced frame, so"
                " neither side can accept the other one's, RFC 6581 section 10"
            )
            return None
        elif request.frame.revision != reply.frame.revision:
            self.notes.append(
                f"{name}: the MPA Request has revision {request.frame.revision} and the Reply"
                f" {reply.frame.revision}, but neither is an enhanced frame: played"
            )
        there = _direction(initiator, responder, request, _Settings(crc, reply.frame.markers), play)
        back = _direction(responder, initiator, reply, _Settings(crc, request.frame.markers), play)
        if play and not there.chunks and not back.chunks and not there.behind_hole:
            self.notes.append(f"{name}: no FPDU follows MPA start-up")
        return Connection(request.frame, reply.frame, (there, back))

    def _without_reply(
        self,
        initiator: Endpoint,
        responder: Endpoint,
        request: _Startup,
        halves: Mapping[Endpoint, Half],
    ) -> Connection | None:
        name, half = f"{initiator} > {responder}", halves[responder]
        if (frame := _other_answer(request, halves[initiator], half)) is not None:
            self._leave(
                f"{name}: frame {frame} answers the MPA Request with something other than an MPA"
                " Reply, so the initiator closes the connection, RFC 5044 section 7.1.1"
            )
            return None
        missing = f"{name}: the MPA Request has no Reply in the capture"
        if half.silent:
            missing += f", which lacks the whole direction {responder} > {initiator}"
        settings = _guess(request, request.frame.markers, request.frame.crc)
        there = _direction(initiator, responder, request, settings, True)
        if not there.chunks:
            self._leave(missing)
            return None
        self.notes.append(f"{missing}: it is assumed to have accepted, with {_said(settings)}")
        self._lacks(responder, initiator, half)
        nothing = Direction(responder, initiator, settings.crc, request.frame.markers, ())
        assumed = StartupFrame(kind="reply", crc=settings.crc, markers=settings.markers)
        return Connection(request.frame, assumed, (there, nothing))

    def _without_request(
        self, initiator: Endpoint, responder: Endpoint, reply: _Startup, half: Half
    ) -> Connection | None:
        missing = f"{responder} > {initiator}: the MPA Reply has no Request in the capture"
        if half.silent:
            missing += f", which lacks the whole direction {initiator} > {responder}"
        settings = _guess(reply, reply.frame.markers, reply.frame.crc)
        play = not reply.frame.reject
        back = _direction(responder, initiator, reply, settings, play)
        there = self._there(initiator, responder, half)
        if not back.chunks and not there.chunks:
            reason = "" if play else ", and rejects the connection"
            self._leave(f"{missing}{reason}; nothing else of the connection can be played")
            return None
        self._lacks(initiator, responder, half)
        if back.chunks:
            self.notes.append(f"{missing}: it is assumed to have agreed on {_said(settings)}")
        elif half.taken:
            self.notes.append(missing)
        assumed = StartupFrame(kind="request", crc=settings.crc, markers=settings.markers)
        return Connection(assumed, reply.frame, (there, back))

    def _lacks(self, source: Endpoint, destination: Endpoint, half: Half) -> None:
        if half.silent:
            self._segments.append(
                LeftOut(1, "direction", f"{source} > {destination}: the capture lacks all of it")
            )

    def _there(self, initiator: Endpoint, responder: Endpoint, half: Half) -> Direction:
        found = self._direction_assumed(initiator, responder, half)
        if not found.chunks and half.taken:
            octets = sum(len(each.octets) for each in half.taken)
            self._segments.append(
                LeftOut(
                    octets,
                    "octet",
                    f"{initiator} > {responder}: captured without the MPA Request; give an FPDU's"
                    " place with --assume fpdu,at=OCTETS,crc (see rnic sim --help)",
                )
            )
        return found

    def _assumed(self, conversation: Conversation, source: Endpoint) -> Direction:
        one, other = conversation.ends
        destination = other if source == one else one
        return self._direction_assumed(source, destination, conversation.halves[source])

    def _direction_assumed(self, source: Endpoint, destination: Endpoint, half: Half) -> Direction:
        """Returns a direction without start-up, with the properties that the user states."""
        nothing = Direction(source, destination, True, False, (), assumed=True)
        for said in self._assumptions:
            if said.sctp or said.source not in (None, source) or not half.taken:
                continue
            self._matched.add(said)
            stream = in_order(half, _base(half))
            first = -(said.markers or 0) % _MARKER_SPACING
            chunks = Chunks(stream, said.at, first)
            if chunks:
                self.notes.append(f"{source} > {destination}: assumed, as --assume says: {said}")
                if said.at:
                    why = f"{source} > {destination}: before the assumed beginning of an FPDU"
                    self._segments.append(LeftOut(said.at, "octet", why))
            return Direction(
                source, destination, said.crc, said.markers is not None, chunks,
                stream.behind_hole, assumed=True, brought=_Broughts(stream, said.at, first),
                after_fin=stream.after_fin, unfinished=stream.unfinished,
            )  # fmt: skip
        return nothing

    def _of_segments(self, conversation: Conversation, connection: Connection) -> None:
        """Notes the defects of a connection's segments."""
        name = f"{connection.initiator} > {connection.responder}"
        for direction in connection.directions:
            if direction.behind_hole:
                self._segments.append(
                    LeftOut(
                        direction.behind_hole,
                        "octet",
                        f"{direction}: these octets follow octets missing from the capture",
                    )
                )
            if direction.after_fin:
                self._segments.append(
                    LeftOut(
                        direction.after_fin,
                        "TCP segment",
                        f"{direction}: with octets after a FIN, which the receiver ignores,"
                        " RFC 9293 section 3.10.7.4",
                    )
                )
            half = conversation.halves[direction.source]
            for why, count in half.ignored.items():
                self._segments.append(LeftOut(count, "TCP segment", f"{direction}: {why}"))
            for why, count in half.played.items():
                self.notes.append(
                    f"{direction}: {counted(count, 'TCP segment')} with {why}, played because no"
                    " other segment brings these octets"
                )
        for why, count in conversation.ignored.items():
            if count:
                self.notes.append(
                    f"{name}: {counted(count, 'TCP segment')} ignored, as the receiver does: {why}"
                )


def _said(settings: _Settings) -> str:
    return f"{'CRC' if settings.crc else 'no CRC'} and {'' if settings.markers else 'no '}markers"


def _guess(startup: _Startup, markers: bool, crc: bool) -> _Settings:
    """Returns the settings of the stream after one half of the start-up.

    They are those with which the first FPDU is sound, or else those that this half asks for.
    """
    octets = startup.stream.octets.read(startup.end, startup.end + (1 << 17))
    for tried in dict.fromkeys((markers, not markers)):
        found = MpaReceiver(crc=True, markers=tried).receive(octets)
        if found and not isinstance(found[0], LlpError):
            return _Settings(True, tried)
    return _Settings(crc, markers)


def _base(half: Half) -> int:
    if half.syn is not None:
        return half.syn
    first = next(iter(half.taken)).sequence
    return (first + min(signed(segment.sequence - first) for segment in half.taken)) % (1 << 32)


def _streams(half: Half) -> Iterator[OrderedOctets]:
    """Yields the octets in order, from the likeliest first octet, then from each start-up
    frame seen.
    """
    if not half.taken:
        return
    yield in_order(half, _base(half))
    for segment in half.taken:
        if segment.octets.startswith((_REQUEST_KEY, _REPLY_KEY)):
            yield in_order(half, segment.sequence)


def _find_startup(
    half: Half, key: bytes, refused: dict[Endpoint, str], source: Endpoint
) -> _Startup | None:
    """Returns the first start-up frame.

    It is usually at the beginning, but later where a ULP changed over to MPA (RFC 5044 section
    7.1.3). Notes in ``refused`` why the model refuses a start-up frame with which the connection
    begins.
    """
    why = ""
    for stream in _streams(half):
        at = stream.octets.find(key)
        while at >= 0:
            try:
                parsed = StartupFrame.parse(stream.octets.read(at, at + _LONGEST_STARTUP))
            except ProtocolError as error:
                parsed = None
                if at == 0:
                    what = "Request" if key == _REQUEST_KEY else "Reply"
                    why = (
                        f"the MPA {what} in frame {stream.pieces.column(0)[0]} is refused: {error}"
                    )
            if parsed is not None:
                return _Startup(parsed[0], stream, at + parsed[1])
            at = stream.octets.find(key, at + 1)
    if why:
        refused[source] = why
    return None


def _other_answer(request: _Startup, half: Half, other: Half) -> int | None:
    """Returns the frame with which a responder answers a Request by something other than a Reply.

    None: the Reply may be missing from the capture. ``half`` is the initiator's, ``other`` that of
    the responder, without a Reply. Its octets before the Request belong to another protocol, after
    which the ULP changed over to MPA (RFC 5044 section 7.1.3).
    """
    if not other.taken:
        return None
    asked = request.stream.frame_of(request.end - 1)
    first = other.syn
    if first is None:  # then the Request acknowledges all octets that came before it
        first = next(each.acknowledged for each in half.taken if each.frame == asked)
    stream = in_order(other, first)
    frames = stream.pieces.column(0)
    if (after := bisect_right(frames, asked)) == len(frames):
        return None
    begin = stream.pieces.column(2)[after]
    try:
        parsed = StartupFrame.parse(stream.octets.read(begin, begin + _LONGEST_STARTUP))
    except ProtocolError:
        return frames[after]
    return frames[after] if parsed is not None else None


def _direction(
    source: Endpoint,
    destination: Endpoint,
    startup: _Startup,
    settings: _Settings,
    play: bool,
) -> Direction:
    stream = startup.stream
    return Direction(
        source,
        destination,
        settings.crc,
        settings.markers,
        Chunks(stream, startup.end) if play else (),
        stream.behind_hole if play else 0,
        brought=_Broughts(stream, startup.end) if play else (),
        after_fin=stream.after_fin if play else 0,
        unfinished=stream.unfinished,
    )


@dataclass(frozen=True)
class _Broughts(Iterable[Brought]):
    """The frames with octets from ``begin`` on, which is at ``first`` of the MPA stream."""

    stream: OrderedOctets
    begin: int
    first: int = 0

    def __iter__(self) -> Iterator[Brought]:
        for frame, position, length in self.stream.brought:
            if position + length > self.begin:
                yield Brought(frame, position + self.first - self.begin, length)


@dataclass(frozen=True)
class Chunks(Sequence[Chunk]):
    """The octets from ``begin`` on, which is at the position ``first`` of the MPA stream, up to
    ``stop``, or to the last one.

    They are read from the spool as they are asked for.
    """

    stream: OrderedOctets
    begin: int
    first: int = 0
    stop: int | None = None

    @property
    def _end(self) -> int:
        return len(self.stream.octets) if self.stop is None else self.stop

    @property
    def _numbers(self) -> range:
        """The numbers of the pieces with such octets."""
        starts = self.stream.pieces.column(2)
        if self._end <= self.begin:
            return range(0)
        return range(bisect_right(starts, self.begin) - 1, bisect_left(starts, self._end))

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Chunk]:
        return self._those(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        numbers = self._numbers[index]
        if isinstance(numbers, int):
            return next(self._those([numbers]))
        return [*self._those(numbers)]

    def _those(self, numbers: Iterable[int]) -> Iterator[Chunk]:
        pieces, read = self.stream.pieces, self.stream.octets.read
        frames, times, starts = (pieces.column(number) for number in range(3))
        begin, before, last = self.begin, self.first - self.begin, self._end
        for number in numbers:
            start = max(starts[number], begin)
            end = min(starts[number + 1], last) if number + 1 < len(starts) else last
            yield Chunk(frames[number], times[number], before + start, read(start, end))
