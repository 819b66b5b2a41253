"""The client's rings: it takes completions, and posts messages to send, without the manager.

    with connect("/run/rnic.sock") as context:
        queue = DirectCQ(context)
        stream = Stream(PD(context), queue)
        ring = SendRing(stream, queue)

The device writes completions to memory that the client polls, and reads work requests that the
client has written. The client rings for both through a doorbell page of its own, which it maps
where the manager has a file of that page; elsewhere the manager makes these writes for it.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from ...hdl.spec.commands import ring_send, take
from ...hdl.spec.completion import OCTETS, Completion, SentStatus, Status, decode, phase
from ...hdl.spec.send import ENTRY, Flag, Piece
from ...hdl.spec.send import Kind as Sends
from ..base.checks import flag, instance, integer, message
from ..base.errors import InvalidRequest, ResourceExhausted, StateError
from ..verbs.cq import WC, Opcode, WcStatus, refresh
from ..verbs.sending import LONGEST, MULPDU, Part
from ..verbs.stream import Stream
from . import protocol
from .client import ClientContext, ClientCQ, ClientStream, Mapped
from .protocol import DIRECT, Object

_STATUS = {Status.DELIVERED: WcStatus.SUCCESS, Status.NOT_PLACED: WcStatus.NOT_PLACED}
_SENT = {
    SentStatus.SUCCESS: WcStatus.SUCCESS,
    SentStatus.FAILED: WcStatus.NOT_READ,
    SentStatus.FLUSHED: WcStatus.FLUSHED,
}


def _size(entries: int, most: int) -> int:
    """Returns the base-2 logarithm of a ring's entries, at most ``most``."""
    rule = f"a power of two from 2 to {most}"
    entries = integer("entries", entries, 2, most, rule)
    if entries & (entries - 1):
        raise InvalidRequest(f"entries must be {rule}, not {entries!r}")
    return entries.bit_length() - 1


class DirectCQ(ClientCQ):
    """A completion queue of the device that this program polls in memory, without the manager.

    It holds as many completions as it has entries. A received message without room stops its
    stream; sent messages wait in the device.

    Parameters
    ----------
    entries
        A power of two from 2 to 128.

    Raises
    ------
    ResourceExhausted
        All doorbell pages are taken, or this client has no completion queue of the device left.
    UnsupportedDevice
        The device cannot write to the memory of a client.
    """

    def __init__(self, context: ClientContext, entries: int = 128) -> None:
        self._size = _size(entries, 128)
        instance("a direct queue's context", context, ClientContext)
        self._consumed = self._returned = 0
        self._found: deque[WC] = deque()
        super().__init__(context, 1 << self._size)

    def _make(self) -> int:
        self._page = self.context.doorbells()
        answer, descriptor = self.context.ask_passed(protocol.DirectQueue(self._size))
        try:
            octets = (OCTETS << self._size) + protocol.SEEN.size
            self._map = mmap.mmap(descriptor, octets, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        handle, self.number = DIRECT.unpack(answer)
        return int(handle)

    # -- completions ------------------------------------------------------------------------------

    def cookie_of(self, own: int, device: int) -> int:
        return device

    def take(self, num_entries: int, *, errors: bool = True) -> list[WC]:
        with self.context.lock:
            self._check()
            self._drain(num_entries)
            taken = [self._found.popleft() for _ in range(min(num_entries, len(self._found)))]
            refresh(taken)
            if not taken and errors:
                self.context.ask(protocol.Poll(self.handle, 1, True))  # raises a stream's error
            return taken

    def _drain(self, most: int) -> None:
        """Takes completions from the ring until ``most`` are ready, or none is left."""
        while len(self._found) < most and (completion := self._next()) is not None:
            self._consumed += 1
            self._taken = self._consumed & 0xFFFF
            self._found += self._completions(completion)
        if self._returned != (index := self._seen()):
            self._returned = index
            self._page.ring(take(index, queue=self.number))

    def _seen(self) -> int:
        """Returns how many completions were taken here that the manager has seen, too."""
        (seen,) = protocol.SEEN.unpack_from(self._map, OCTETS << self._size)
        behind = (self._consumed - seen) & 0xFFFF
        return self._consumed - (behind if behind < 1 << 15 else 0)

    def _next(self) -> Completion | None:
        start = (self._consumed & (1 << self._size) - 1) * OCTETS
        # The phase is in the last octet, which the device writes last.
        if self._map[start + OCTETS - 1] & 1 != phase(self._consumed, self._size):
            return None
        return decode(self._map[start : start + OCTETS])

    def _completions(self, found: Completion) -> list[WC]:
        stream = self.context.streams[found.stream]
        assert isinstance(stream, ClientStream)
        if isinstance(found.status, SentStatus):
            ended: list[WC] = stream.ring.ended(found.status, found.tag)
            return ended
        assert isinstance(found.status, Status)
        status = _STATUS[found.status]
        if found.tagged:
            regions = self.context.regions.values()
            region = next((each for each in regions if each.has(found.tag)), None)
            if region is not None:
                region.written = True
            return [
                WC(
                    stream, status, Opcode.TAGGED, byte_len=found.length, stag=found.tag,
                    mr=region, rsvdulp=found.rsvdulp, to=found.cookie,
                )
            ]  # fmt: skip
        wr_id = stream.take_back(found.cookie, found.length)
        return [
            WC(
                stream, status, Opcode.RECV, wr_id, found.length, found.qn, found.tag,
                rsvdulp=found.rsvdulp,
            )
        ]  # fmt: skip

    def end(self, stream: ClientStream) -> None:
        self.flush(stream.flushed)
        self.named.pop(stream.handle, None)

    def flush(self, flushed: Callable[[], list[WC]]) -> None:
        """Adds the completions that ``flushed`` returns, after those of the device: it wrote the
        last ones of a stream before the manager closed the stream.
        """
        self._drain(len(self._found) + (1 << self._size))
        self._found += flushed()

    # -- waiting ----------------------------------------------------------------------------------

    def _ask_ready(self, deadline: float | None) -> Future[bytes]:
        with self.context.lock:
            self._check()
            if self._found or self._next() is not None:
                ready: Future[bytes] = Future()
                ready.set_result(protocol.READY.pack(True))
                return ready
            if self._seen() != self._consumed:
                # The manager looks, so that the ring has room for those that come.
                self.context.ask(protocol.Poll(self.handle, 1, False))
            # The device interrupts the manager as soon as it has written others than these.
            self._returned = self._seen()
            self._page.ring(take(self._returned, queue=self.number, arm=True))
            return super()._ask_ready(deadline)

    def close(self) -> None:
        with self.context.lock:
            if not self.closed:
                super().close()
                self._map.close()


class SendRing:
    """The work requests of a stream, in memory that the device reads.

    The client owns the stream's LLP: it passes the FPDUs from :meth:`fpdus` to its peer, in their
    order. The device sends at most 128 KiB of FPDUs ahead of that.

    Parameters
    ----------
    stream, queue
        A stream of this client, which then has this ring until it is closed; and the queue that
        gets the completions of its messages, each with :attr:`~..verbs.cq.Opcode.SENT`.
    entries
        A power of two from 2 to 64. A message takes one entry of 64 octets, or several.
    mulpdu
        Octets of the longest DDP Segment, from 128 to 16384.
    crc, markers
        The settings that MPA's start-up agreed on for the sending direction.
    """

    def __init__(
        self,
        stream: Stream,
        queue: DirectCQ,
        *,
        entries: int = 64,
        mulpdu: int = 1440,
        crc: bool = True,
        markers: bool = False,
    ) -> None:
        size = _size(entries, 64)
        mulpdu = integer("mulpdu", mulpdu, MULPDU[0], LONGEST)
        instance("a send ring's stream", stream, ClientStream)
        instance("a send ring's queue", queue, DirectCQ)
        assert isinstance(stream, ClientStream)
        self.stream, self._queue, self._entries = stream, queue, 1 << size
        self._context = context = stream.context
        self._page = context.doorbells()
        self._producer = self._done = 0
        # The indices of a message's entries and after them, its wr_id and its octets.
        self._posted: deque[tuple[int, int, object, int]] = deque()
        self._fault = 0  # the index up to which entries have failed
        with context.lock:
            self._memory = Mapped(context.link, ENTRY << size)
            try:
                context.ask(
                    protocol.SendRing(
                        stream.handle, queue.handle, self._memory.handle, 0,
                        size, mulpdu, flag("crc", crc),
                        flag("markers", markers),
                    )
                )  # fmt: skip
            except BaseException:
                context.remove(Object.MEMORY, self._memory.handle)
                raise
            stream.ring = self

    def post(
        self, kind: Sends, body: bytes | Part | Piece, *, wr_id: object = None, **fields: int
    ) -> None:
        """Posts a message, and rings for it.

        Parameters
        ----------
        kind, fields
            As :class:`~....hdl.spec.send.Message` declares.
        body
            Its octets, as many as fit in the ring; or a part of a region, which has a Steering Tag
            and is not changed until the completion. READ: the sink.
        wr_id
            Any value; the completion contains it.

        Raises
        ------
        InvalidRequest
            There is no such kind or field on this stream, a field is too large, or a READ has no
            sink.
        ResourceExhausted
            The ring has no room.
        """
        instance(
            "a message's body", body, bytes | Part | Piece, called="bytes object, a Part or a Piece"
        )
        queues = self.stream.queues
        if isinstance(body, Part):
            body = piece if (piece := body.piece).length else b""
        if isinstance(body, bytes):
            flags = Flag.SIGNALED | Flag.INLINE
            posted, octets = message(kind, flags, fields, queues=queues, octets=body)
        else:
            posted, octets = message(kind, Flag.SIGNALED, fields, queues=queues, pieces=(body,))
        count = len(octets) // ENTRY
        with self._context.lock:
            if self.stream.left is not None:
                raise StateError(f"stream {self.stream.number} is closed")
            if count > self._entries - (self._producer - self._done):
                raise ResourceExhausted(
                    f"the send ring has no room for {count} entries: take completions first, send"
                    " long messages from a region, or give the ring more entries"
                )
            for at in range(0, len(octets), ENTRY):
                slot = self._producer % self._entries * ENTRY
                self._memory.map[slot : slot + ENTRY] = octets[at : at + ENTRY]
                self._producer += 1
            begin = self._producer - count
            self._posted.append((begin, self._producer, wr_id, posted.length))
            self._page.ring(ring_send(self.stream.number, self._producer))

    def fpdus(self) -> list[bytes]:
        """Returns the FPDUs that the device has sent since the last call, for the LLP to carry."""
        return protocol.decode_sent(self._context.ask(protocol.Sent(self.stream.handle)))

    def ended(self, status: SentStatus, done: int) -> list[WC]:
        """Returns the completions of the messages whose entries are before an index modulo
        2**16.
        """
        self._done += (done - self._done) % (1 << 16)
        if status is SentStatus.FAILED:
            self._fault = self._done
        ended = []
        while self._posted and self._posted[0][1] <= self._done:
            begin, end, wr_id, length = self._posted.popleft()
            # If the device fails a message before it has read all entries, it flushes the others.
            failed = begin < self._fault < end
            result = WcStatus.NOT_READ if failed else _SENT[status]
            ended.append(WC(self.stream, result, Opcode.SENT, wr_id, length))
        return ended

    def end(self) -> None:
        """Ends the messages that have not left, after the stream was closed."""
        self._queue.flush(lambda: self.ended(SentStatus.FLUSHED, self._producer))
        self._context.remove(Object.MEMORY, self._memory.handle)
