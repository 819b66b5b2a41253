"""Lets a device send what the senders of a capture sent, and compares that with the model.

The work requests are those of :mod:`~.sending`. A MULPDU, an MSN or a position that changes is
written once everything before it has left. Some FPDUs and chunks are asked for again, as by an LLP
that keeps no copy. Each association has a path of its own; its chunks get the TSNs that follow one
another as they leave.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import commands
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.path import SendPath
from ...hdl.spec.sctp import LONGEST_BODY, SSN
from ...hdl.spec.send import ENTRY, LONGEST_SEGMENT, Flag, Kind, Message, Piece, Record
from ...hdl.spec.stag import Access
from ..capture.sctp_traffic import SctpArrival, SctpStream
from ..capture.streams import MARKER_SPACING, QUEUES, Arrival
from ..engines.engine import Drain, Fpdu, Operation, Outcome, Store, operations_of
from ..model.ddp import decode_segment
from ..model.header import Header, UntaggedHeader
from ..model.sctp import DataChunk, Packet, Ppid
from .differences import Difference
from .paths import example_path, frame_of
from .sending import REGION, Post, Sent, is_control

__all__ = ["SendPlan", "send_plans"]

#: Base-2 logarithm of the entries of a ring.
RING = 9
#: One in this number of FPDUs is asked for again.
_AGAIN = 3
#: Octets between the messages in memory, which no message has, so that no two begin alike.
_GAP = 13


@dataclass
class SendPlan:
    """One device sends these messages: those of up to as many streams as it has.

    Attributes
    ----------
    operations, memory
        For the engine.
    posts
        The work requests by stream, in the order of the streams.
    records
        The record beside each segment's FPDU, by stream.
    again
        The segments that are asked for again, by stream, in the order of the requests.
    paths
        The path of each association, in the order of their numbers.
    left_out
        Segments of messages that the device cannot send, by the reason.
    """

    config: RnicConfig
    senders: Sequence[Sent]
    operations: list[Operation] = field(default_factory=list)
    memory: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    posts: list[list[Post]] = field(default_factory=list)
    records: list[list[Record]] = field(default_factory=list)
    again: list[list[int]] = field(default_factory=list)
    paths: list[_Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def segments(self) -> int:
        """The number of segments that the device has to send."""
        return sum(
            len(post.sent)
            for posts in self.posts
            for post in posts
            if post.message.kind is not Kind.CONTROL
        )

    @property
    def controls(self) -> int:
        """The number of session control messages that the device has to send."""
        return sum(post.message.kind is Kind.CONTROL for posts in self.posts for post in posts)

    @property
    def repeats(self) -> int:
        """The number of segments and control messages that the device has to send again."""
        return sum(map(len, self.again))

    def compare(self, outcome: Outcome) -> list[Difference]:
        """Compares the FPDUs and frames that the device sent, and sent again, with those of the
        model.
        """
        sent: dict[tuple[int, int], list[tuple[Fpdu, Record]]] = defaultdict(list)
        for fpdu in (*outcome.fpdus, *outcome.frames):
            record = Record.decode(fpdu.record)
            sent[fpdu.stream, record.repeat].append((fpdu, record))
        found: list[Difference] = [*self._tsns(outcome)]
        for number, (posts, records, again) in enumerate(
            zip(self.posts, self.records, self.again, strict=True)
        ):
            expected = list(
                zip((each for post in posts for each in post.sent), records, strict=True)
            )
            what = "frame" if isinstance(self.senders[number].stream, SctpStream) else "FPDU"
            found += self._compare(number, expected, sent[number, 0], what)
            repeated = [(one, replace(record, repeat=1)) for one, record in map(
                expected.__getitem__, again)]  # fmt: skip
            found += self._compare(number, repeated, sent[number, 1], f"repeated {what}")
        return found

    def _tsns(self, outcome: Outcome) -> Iterator[Difference]:
        """Yields the first TSN of each association that does not follow the one before."""
        for path in self.paths:
            tsn = path.tsn
            for frame in outcome.frames:
                if frame.stream in path.streams and not Record.decode(frame.record).repeat:
                    if frame.sequence != tsn:
                        shown = f"{tsn:#010x}", f"{frame.sequence:#010x}"
                        yield Difference("the RTL's TSN", f"stream {frame.stream}", *shown)
                        break
                    tsn = (tsn + 1) % (1 << 32)

    def _compare(
        self, number: int, expected: Sequence[tuple[Arrival, Record]],
        sent: Sequence[tuple[Fpdu, Record]], what: str,
    ) -> Iterator[Difference]:  # fmt: skip
        """Yields the first FPDU or frame of a stream that differs, and whether the stream has more
        or fewer.
        """
        for (each, record), (mine, its) in zip(expected, sent, strict=False):
            where = f"frame {each.frame}"
            octets, sequence = each.raw, each.position & 0xFFFFFFFF
            if isinstance(each, SctpArrival):
                octets, sequence = self._frame(number, each, mine.sequence), mine.sequence
                if its.repeat:
                    sequence = each.position & 0xFFFFFFFF
            if (mine.sequence, mine.octets) != (sequence, octets):
                shown = _first_octets(octets, mine.octets)
                yield Difference(f"the RTL's {what}", where, *shown, octets=shown)
                break
            if its != record:
                yield Difference(f"the record of the RTL's {what}", where, str(record), str(its))
                break
        if len(expected) != len(sent):
            counts = f"{len(expected)} {what}s", f"{len(sent)}"
            yield Difference("the RTL's stream", str(number), *counts)

    def _frame(self, number: int, arrival: SctpArrival, tsn: int) -> bytes:
        """Returns the frame with a chunk that has this TSN."""
        path = next(each for each in self.paths if number in each.streams).path
        chunk = DataChunk(
            tsn, int.from_bytes(arrival.raw[8:10], "big"),
            Ppid.CONTROL if is_control(arrival) else Ppid.SEGMENT,
            (arrival.sequence % (1 << 16)).to_bytes(2, "big") + arrival.ulpdu,
        )  # fmt: skip
        packet = Packet(path.source_port, path.destination_port, path.tag, (chunk,))
        return frame_of(path.headers, packet.encode())


@dataclass
class _Path:
    """The path of an association, its first TSN, the device's streams on it, and its credit."""

    path: SendPath
    tsn: int
    streams: list[int] = field(default_factory=list)
    chunks: int = 0
    octets: int = 0


def _first_octets(one: bytes, other: bytes) -> tuple[str, str]:
    """Returns the octets from the first that differs, in hexadecimal."""
    at = len(commonprefix([one, other]))
    return one[at : at + 16].hex(" "), other[at : at + 16].hex(" ")


def send_plans(senders: Sequence[Sent], config: RnicConfig) -> Iterator[SendPlan]:
    """Yields a plan for as many streams with posts as a device has, until all are planned. Senders
    over SCTP have one if the device has SCTP.
    """
    rest = (
        each
        for each in senders
        if each.posts and (config.sctp or not isinstance(each.stream, SctpStream))
    )
    while batch := list(islice(rest, config.streams)):
        yield _Planner(SendPlan(config, sorted(batch, key=_ends))).plan()


def _ends(sent: Sent) -> tuple[str, str]:
    """Returns the ends of a sender's association. The streams of one follow one another."""
    stream = sent.stream
    if not isinstance(stream, SctpStream):
        return "", ""
    return str(stream.source), str(stream.destination)


class _Planner:
    """Plans the work of one device."""

    def __init__(self, plan: SendPlan) -> None:
        self._plan = plan
        self._count = count()  # of the device's segments
        self._pieces: list[bytes] = []
        self._at = 0

    def plan(self) -> SendPlan:
        plan = self._plan
        streams = [
            (_SctpStream if isinstance(each.stream, SctpStream) else _Stream)(number, each)
            for number, each in enumerate(plan.senders)
        ]
        self._lay_paths(streams)
        for stream in streams:
            plan.posts.append([])
            plan.records.append([])
            plan.again.append([])
            for post in stream.sent.posts:
                if (obstacle := _obstacle(post, plan.config)) is None:
                    plan.posts[-1].append(post)
                else:
                    plan.left_out[obstacle] += len(post.sent)
            self._lay_out(stream, plan.posts[-1])
        for stream in streams:
            self._place_ring(stream)
        plan.memory = np.frombuffer(b"".join(self._pieces) or b"\0", np.uint8).copy()
        queue = []
        for stream in streams:
            # Over SCTP, an earlier message may arrive later.
            frame = 0
            for at, post in enumerate(plan.posts[stream.number]):
                frame = max(frame, post.arrivals[0].frame)
                queue.append((frame, stream.number, at))
        queue.sort()
        for _, number, at in queue:
            stream, post = streams[number], plan.posts[number][at]
            entries = stream.encode(post)
            if steps := stream.settings(post):
                plan.operations += [Drain(), *operations_of(steps)]
            elif not stream.room(len(entries) // ENTRY):
                plan.operations.append(Drain())
            again = self._record(stream, post, len(entries) // ENTRY)
            plan.operations += [*stream.post(entries), *self._allow(stream, post), *again]
        return plan

    def _allow(self, stream: _Stream, post: Post) -> Sequence[Operation]:
        """Gives a message over SCTP its credit once it was posted, and not an octet more."""
        if not isinstance(stream, _SctpStream):
            return []
        path = self._plan.paths[stream.association]
        path.chunks += len(post.sent)
        path.octets += sum(SSN + len(each.ulpdu) for each in post.sent)
        return operations_of((
            *commands.set_limit(stream.number, stream.chunks),
            *commands.set_path_limit(stream.association, path.tsn + path.chunks, path.octets),
        ))  # fmt: skip

    def _record(self, stream: _Stream, post: Post, entries: int) -> list[Operation]:
        """Notes the records of a message's segments; returns the operations that ask for some of
        these again.
        """
        records, again, offset = (
            self._plan.records[stream.number],
            self._plan.again[stream.number],
            0,
        )
        operations: list[Operation] = []
        for segment in post.sent:
            header, payload = _decoded(segment)
            record = Record(
                entry=stream.producer % (1 << 16), offset=offset, entries=entries, response=0,
                ends=int(segment is post.sent[-1]),
                signaled=int(Flag.SIGNALED in post.message.flags), repeat=0,
            )  # fmt: skip
            if next(self._count) % _AGAIN == 0:
                again.append(len(records))
                operations += operations_of(
                    commands.repeat(
                        stream.number, segment.position, entry=record.entry, entries=entries,
                        offset=offset, length=len(segment.ulpdu),
                        ssn=segment.sequence if isinstance(segment, SctpArrival) else 0,
                        msn=header.msn if isinstance(header, UntaggedHeader) else 0,
                    )
                )  # fmt: skip
            records.append(record)
            offset += len(payload)
        return operations

    def _lay_out(self, stream: _Stream, posts: Sequence[Post]) -> None:
        """Puts the octets of a stream's messages in memory, as one region."""
        self._skip(_GAP)
        address = self._at
        for post in posts:
            stream.places.append(self._at - address)
            self._pieces.append(post.octets)
            self._at += len(post.octets)
            self._skip(_GAP)
        steps = (
            *commands.set_stream(
                stream.number, pd=stream.number, cq=0 if self._plan.config.receive else None
            ),
            *commands.set_stag(
                stream.stag, Access.LOCAL_READ, to=REGION.to, length=self._at - address,
                address=address, pd=stream.number,
            ),
        )  # fmt: skip
        self._plan.operations += operations_of(steps)

    def _lay_paths(self, streams: Sequence[_Stream]) -> None:
        """Gives each association a path: over IPv4 or IPv6, in UDP or not, with a VLAN tag or
        without.
        """
        found: dict[tuple[str, str], int] = {}
        for stream in streams:
            if isinstance(stream, _SctpStream):
                stream.association = found.setdefault(_ends(stream.sent), len(found))
                if stream.association == len(self._plan.paths):
                    self._plan.paths.append(_Path(example_path(len(found)), (1 << 32) - 7))
                self._plan.paths[stream.association].streams.append(stream.number)
        for number, each in enumerate(self._plan.paths):
            self._plan.operations += operations_of(
                (
                    *commands.set_path(
                        number, each.path, tsn=each.tsn,
                        first=each.streams[0], count=len(each.streams),
                    ),
                    *commands.set_path_limit(number, each.tsn, 0),
                )
            )  # fmt: skip

    def _place_ring(self, stream: _Stream) -> None:
        self._skip(-self._at % ENTRY)
        stream.ring = self._at
        self._skip(ENTRY << RING)
        self._plan.operations += operations_of(
            commands.set_send_ring(stream.number, stream.ring, RING)
        )

    def _skip(self, octets: int) -> None:
        self._pieces.append(bytes([0xEE]) * octets)
        self._at += octets


class _Stream:
    """The sending half of a stream: its ring, and its settings so far."""

    def __init__(self, number: int, sent: Sent) -> None:
        self.number, self.sent = number, sent
        self.stag = number << 8 | 0x5E
        self.ring = 0
        self.places: list[int] = []
        self.producer = self._sent = 0
        self._mulpdu = 0
        self._position: int | None = None
        self._msns: dict[int, int] = {}

    def encode(self, post: Post) -> bytes:
        """Returns the entries of the next message."""
        message, moved = post.message, self.places.pop(0)
        if message.kind is not Kind.READ and message.pieces:
            pieces = tuple(
                Piece(self.stag, each.length, each.to + moved) for each in message.pieces
            )
            message = Message(
                message.kind, message.flags, pieces, rsvdulp=message.rsvdulp, qn=message.qn,
                stag=message.stag, to=message.to,
            )  # fmt: skip
        return message.encode()

    def room(self, entries: int) -> bool:
        """Decides whether the ring has room; if not, it has once everything was sent."""
        if self.producer + entries - self._sent <= 1 << RING:
            return True
        self._sent = self.producer
        return False

    def post(self, entries: bytes) -> Iterator[Operation]:
        """Yields the operations that post a message: its entries, and the doorbell."""
        for at in range(0, len(entries), ENTRY):
            slot = self.producer % (1 << RING)
            yield Store(self.ring + slot * ENTRY, entries[at : at + ENTRY])
            self.producer += 1
        yield from operations_of(commands.ring_send(self.number, self.producer))

    def settings(self, post: Post) -> list[commands.Write]:
        """Returns the writes of registers without which the message would not leave as it did."""
        first, steps = post.sent[0], self._place(post)
        needed = _mulpdu(post) or 0
        if needed > self._mulpdu or (len(post.sent) > 1 and needed != self._mulpdu):
            steps += commands.set_mulpdu(self.number, needed)
            self._mulpdu = needed
        header, _ = _decoded(first)
        if isinstance(header, UntaggedHeader):
            if self._msns.get(header.qn) != header.msn:
                steps += commands.set_sent_msn(self.number, header.qn, header.msn)
            self._msns[header.qn] = (header.msn + 1) % (1 << 32)
        if steps:
            self._sent = self.producer
        return steps

    def _place(self, post: Post) -> list[commands.Write]:
        """Returns the writes without which the message would not have its place in the stream."""
        first, place = post.sent[0], self._position
        self._position = first.position + sum(len(each.raw) for each in post.sent)
        if first.position == place:
            return []
        return [
            *commands.set_sending(
                self.number, sequence=first.position & 0xFFFFFFFF,
                after=(first.position % MARKER_SPACING // 4 - 1) % (MARKER_SPACING // 4),
                crc=first.stream.crc, markers=first.stream.markers,
            )
        ]  # fmt: skip


class _SctpStream(_Stream):
    """The sending half of a stream over SCTP."""

    association = 0
    _session = -1

    @property
    def chunks(self) -> int:
        """Chunks of the session, with those of the last message that was posted."""
        return self._position or 0

    def _place(self, post: Post) -> list[commands.Write]:
        first, place = post.sent[0], (self._session, self._position)
        assert isinstance(first, SctpArrival)
        self._session, self._position = first.session, first.sequence + len(post.sent)
        if (first.session, first.sequence) == place:
            return []
        return [
            *commands.set_limit(self.number, first.sequence),
            *commands.set_sending_sctp(
                self.number, association=self.association, sid=int.from_bytes(first.raw[8:10]),
                sequence=first.sequence, limited=True,
            ),
        ]  # fmt: skip


def _mulpdu(post: Post) -> int | None:
    """Returns the MULPDU with which a message is cut as it was; None if there is none."""
    lengths = [len(each.ulpdu) for each in post.sent]
    mulpdu = lengths[0]
    if any(each != mulpdu for each in lengths[:-1]) or lengths[-1] > mulpdu:
        return None
    # A segment has room for one octet at least.
    return mulpdu if _decoded(post.sent[0])[1] else mulpdu + 1


def _decoded(arrival: Arrival) -> tuple[Header | None, bytes]:
    """Returns the header and the payload of a segment; a control message has no header."""
    if is_control(arrival):
        return None, arrival.ulpdu[2:]
    return decode_segment(arrival.ulpdu)


def _obstacle(post: Post, config: RnicConfig) -> str | None:
    """Returns the reason why the device cannot send the message as the model sends it."""
    if post.message.kind is Kind.READ and not config.receive:
        return "an RTL that only sends takes no Read Response"
    if post.message.kind is Kind.UNTAGGED and post.message.qn >= QUEUES:
        return f"the RTL has {QUEUES} untagged queues"
    over_sctp = isinstance(post.sent[0], SctpArrival)
    longest = LONGEST_BODY if over_sctp else LONGEST_SEGMENT
    if max(len(each.ulpdu) for each in post.sent) > longest:
        way = "SCTP" if over_sctp else "MPA"
        return f"the RTL sends segments of at most {longest} octets over {way}"
    if _mulpdu(post) is None:
        return "the RTL's MULPDU cannot change within a message"
    return None
