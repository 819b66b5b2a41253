"""Lets a device send what the senders of a capture sent, and compares that with the model.

The work requests are those of :mod:`~.sending`. A MULPDU, an MSN or a position that changes is
written once everything before it has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os.path import commonprefix

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec import commands
from ...hdl.spec.config import RnicConfig
from ...hdl.spec.send import ENTRY, Kind, Message, Piece
from ...hdl.spec.stag import Access
from ..capture.sctp_traffic import SctpStream
from ..capture.streams import MARKER_SPACING, QUEUES
from ..engines.engine import Drain, Operation, Outcome, Store, operations_of
from ..model.ddp import decode_segment
from ..model.header import UntaggedHeader
from .differences import Difference
from .sending import REGION, Post, Sent

__all__ = ["SendPlan", "send_plans"]

#: Base-2 logarithm of the entries of a ring.
RING = 9
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
    left_out
        Segments of messages that no device can send, by the reason.
    """

    config: RnicConfig
    senders: Sequence[Sent]
    operations: list[Operation] = field(default_factory=list)
    memory: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    posts: list[list[Post]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def segments(self) -> int:
        """The number of segments that the device has to send."""
        return sum(len(post.sent) for posts in self.posts for post in posts)

    def compare(self, outcome: Outcome) -> list[Difference]:
        """Compares the FPDUs that the device sent with those of the model."""
        sent: list[list[tuple[int, bytes]]] = [[] for _ in self.senders]
        for fpdu in outcome.fpdus:
            sent[fpdu.stream].append((fpdu.sequence, fpdu.octets))
        found = []
        for number, (posts, fpdus) in enumerate(zip(self.posts, sent, strict=True)):
            expected = [each for post in posts for each in post.sent]
            for each, mine in zip(expected, fpdus, strict=False):
                wanted = each.position & 0xFFFFFFFF, each.raw
                if mine != wanted:
                    shown = _first_octets(wanted[1], mine[1])
                    where = f"frame {each.frame}"
                    found.append(Difference("the RTL's FPDU", where, *shown, octets=shown))
                    break
            if len(expected) != len(fpdus):
                counts = f"{len(expected)} FPDUs", f"{len(fpdus)}"
                found.append(Difference("the RTL's stream", str(number), *counts))
        return found


def _first_octets(one: bytes, other: bytes) -> tuple[str, str]:
    """Returns the octets from the first that differs, in hexadecimal."""
    at = len(commonprefix([one, other]))
    return one[at : at + 16].hex(" "), other[at : at + 16].hex(" ")


def send_plans(senders: Sequence[Sent], config: RnicConfig) -> Iterator[SendPlan]:
    """Yields a plan for as many streams as a device has, until all are planned. The device sends
    over MPA alone, so senders over SCTP have none.
    """
    rest = (each for each in senders if not isinstance(each.stream, SctpStream))
    while batch := list(islice(rest, config.streams)):
        yield _Planner(SendPlan(config, batch)).plan()


class _Planner:
    """Plans the work of one device."""

    def __init__(self, plan: SendPlan) -> None:
        self._plan = plan
        self._pieces: list[bytes] = []
        self._at = 0

    def plan(self) -> SendPlan:
        plan = self._plan
        streams = [_Stream(number, each) for number, each in enumerate(plan.senders)]
        for stream in streams:
            plan.posts.append([])
            for post in stream.sent.posts:
                if (obstacle := _obstacle(post)) is None:
                    plan.posts[-1].append(post)
                else:
                    plan.left_out[obstacle] += len(post.sent)
            self._lay_out(stream, plan.posts[-1])
        for stream in streams:
            self._place_ring(stream)
        plan.memory = np.frombuffer(b"".join(self._pieces) or b"\0", np.uint8).copy()
        queue = sorted(
            (post.arrivals[0].frame, stream.number, at)
            for stream in streams
            for at, post in enumerate(plan.posts[stream.number])
        )
        for _, number, at in queue:
            stream, post = streams[number], plan.posts[number][at]
            entries = stream.encode(post)
            if steps := stream.settings(post):
                plan.operations += [Drain(), *operations_of(steps)]
            elif not stream.room(len(entries) // ENTRY):
                plan.operations.append(Drain())
            plan.operations += stream.post(entries)
        return plan

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
            *commands.set_stream(stream.number, pd=stream.number),
            *commands.set_stag(
                stream.stag, Access.LOCAL_READ, to=REGION.to, length=self._at - address,
                address=address, pd=stream.number,
            ),
        )  # fmt: skip
        self._plan.operations += operations_of(steps)

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
        self._producer = self._sent = 0
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
        if self._producer + entries - self._sent <= 1 << RING:
            return True
        self._sent = self._producer
        return False

    def post(self, entries: bytes) -> Iterator[Operation]:
        """Yields the operations that post a message: its entries, and the doorbell."""
        for at in range(0, len(entries), ENTRY):
            slot = self._producer % (1 << RING)
            yield Store(self.ring + slot * ENTRY, entries[at : at + ENTRY])
            self._producer += 1
        yield from operations_of(commands.ring_send(self.number, self._producer))

    def settings(self, post: Post) -> list[commands.Write]:
        """Returns the writes of registers without which the message would not leave as it did."""
        first, steps = post.sent[0], list[commands.Write]()
        if first.position != self._position:
            steps += commands.set_sending(
                self.number, sequence=first.position & 0xFFFFFFFF,
                after=(first.position % MARKER_SPACING // 4 - 1) % (MARKER_SPACING // 4),
                crc=first.stream.crc, markers=first.stream.markers,
            )  # fmt: skip
        self._position = first.position + sum(len(each.raw) for each in post.sent)
        needed = _mulpdu(post) or 0
        if needed > self._mulpdu or (len(post.sent) > 1 and needed != self._mulpdu):
            steps += commands.set_mulpdu(self.number, needed)
            self._mulpdu = needed
        header, _ = decode_segment(first.ulpdu)
        if isinstance(header, UntaggedHeader):
            if self._msns.get(header.qn) != header.msn:
                steps += commands.set_sent_msn(self.number, header.qn, header.msn)
            self._msns[header.qn] = (header.msn + 1) % (1 << 32)
        if steps:
            self._sent = self._producer
        return steps


def _mulpdu(post: Post) -> int | None:
    """Returns the MULPDU with which a message is cut as it was; None if there is none."""
    lengths = [len(each.ulpdu) for each in post.sent]
    mulpdu = lengths[0]
    if any(each != mulpdu for each in lengths[:-1]) or lengths[-1] > mulpdu:
        return None
    # A segment has room for one octet at least.
    return mulpdu if decode_segment(post.sent[0].ulpdu)[1] else mulpdu + 1


def _obstacle(post: Post) -> str | None:
    """Returns the reason why no device can send the message as the model sends it."""
    if post.message.kind is Kind.UNTAGGED and post.message.qn >= QUEUES:
        return f"the RTL has {QUEUES} untagged queues"
    if _mulpdu(post) is None:
        return "the RTL's MULPDU cannot change within a message"
    return None
