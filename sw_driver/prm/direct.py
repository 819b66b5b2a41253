"""The manager's side of direct queues and send rings.

The client takes completions from a ring of its own, writes work requests to another one, and rings
for both through its doorbell page. The device writes the completion ring; the client and the
manager read it. The manager counts by these entries, and believes nothing that the client says.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from ...hdl.spec import commands, regs
from ...hdl.spec.completion import OCTETS, Completion, Kind, SentStatus
from ...hdl.spec.send import ENTRY
from ..base.errors import InvalidRequest, ResourceExhausted, StreamError, TransportError
from ..transports.memory import Memory, Steps
from ..transports.transport import SentFpdu
from ..verbs.context import Context, Ring
from ..verbs.cq import CQ, WC
from ..verbs.sending import LONGEST, MULPDU
from ..verbs.stream import Stream
from . import protocol
from .memory import F_SEAL_FUTURE_WRITE, Passed
from .owned import OwnedStream, Posted
from .pages import Page
from .protocol import Done

#: The largest rings, as base-2 logarithms: each fits in a page of memory.
LARGEST_QUEUE, LARGEST_RING = 7, 6
#: Octets that a stream may send before the client takes them; and more than it ever sends.
_AHEAD, _ALL = 1 << 17, 1 << 30
#: Octets of one answer that FPDUs may fill.
_ANSWER = protocol.LONGEST_ANSWER - 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class DirectRing(Ring):
    """A completion queue of the device, in a ring that one client maps, read-only, beside the
    manager.

    The client gives entries back itself. If it gives back some that the manager has not seen, the
    manager may miss them; the buffers of these are freed with their stream.

    Attributes
    ----------
    descriptor
        The memory that the client maps: the ring, and then ``SEEN``. Whoever takes it closes it.
    """

    def __init__(self, context: Context, number: int, size: int, page: int) -> None:
        octets = OCTETS << size
        self.descriptor, self._map = _mapped(octets + protocol.SEEN.size)
        try:
            memory = context.reached(context.transport.share(memoryview(self._map)[:octets]))
            super().__init__(context, number, size, memory=memory, page=page)
        except BaseException:
            os.close(self.descriptor)
            raise

    def give_back(self) -> None:
        """Says how many entries the manager has seen; the client gives them back."""
        self._returned = self.consumed
        protocol.SEEN.pack_into(self._map, self.entries * OCTETS, self.consumed & 0xFFFF)

    def take(self, most: int) -> Iterator[Completion]:
        """Yields the completions that are present, of the streams that complete here."""
        for completion in super().take(most):
            # A client that gives back too early may make the manager read an entry of the past,
            # whose stream is another client's by now.
            stream = self._context.streams.get(completion.stream)
            if stream is None:
                continue
            queue = stream.cq
            if completion.kind is Kind.SENT:
                queue = getattr(stream.sending, "queue", None)
            if queue is not None and queue.ring is self:
                yield completion

    def _next(self) -> Completion | None:
        try:
            return super()._next()
        except TransportError:
            # The client gave the entry back, and the device has overwritten it in part.
            return None

    def close(self) -> None:
        super().close()
        with suppress(BufferError):
            self._map.close()


def _mapped(octets: int) -> tuple[int, mmap.mmap]:
    """Returns a memfd, and the one mapping of it that can ever be written."""
    try:
        descriptor = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, octets)
            mapped = mmap.mmap(descriptor, octets)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise ResourceExhausted(
            f"a ring of {octets} octets cannot be allocated: {error.strerror}"
        ) from error
    return descriptor, mapped


class DirectQueue(CQ):
    """A completion queue of the device that its client polls without the manager.

    Parameters
    ----------
    numbers
        The device's queues of this client that are not in use.
    completed, stopped
        As in :class:`~.owned.OwnedQueue`.
    """

    def __init__(
        self,
        context: Context,
        size: int,
        page: Page,
        numbers: list[int],
        completed: Callable[[Posted], None],
        stopped: Callable[[Stream, str], None],
    ) -> None:
        if not 1 <= size <= LARGEST_QUEUE:
            raise InvalidRequest(
                f"a direct completion queue must have from 2 to {1 << LARGEST_QUEUE} entries, a"
                " power of two"
            )
        if not numbers:
            raise ResourceExhausted(
                f"of the device's {context.capabilities.cqs} completion queues none is left for"
                " this client: close a direct queue, or have the manager serve fewer clients"
            )
        self._size, self._page, self._numbers = size, page, numbers
        self._completed, self._stopped = completed, stopped
        super().__init__(context, 1 << size)

    ring: DirectRing

    def _open_ring(self) -> Ring:
        ring = DirectRing(self.context, self._numbers[0], self._size, self._page.number)
        self.context.rings.append(ring)
        self._numbers.pop(0)
        return ring

    def _close_ring(self) -> None:
        self.ring.close()
        self.context.rings.remove(self.ring)
        self._numbers.append(self.ring.number)

    # -- for streams ------------------------------------------------------------------------------

    def put(self, wc: WC) -> None:
        """Notes a receive buffer that is not in use any more; the client has the completion."""
        if isinstance(wc.wr_id, Posted):
            self._entries.append(wc)

    def put_error(self, error: StreamError) -> None:
        super().put_error(error)
        stream = self.context.streams[error.event.stream]
        assert isinstance(stream, OwnedStream)
        self._stopped(stream, f"in error: {error.number}")

    # -- for the client ---------------------------------------------------------------------------

    def arrived(self, taken: int) -> bool:
        """Returns whether the queue has completions after those taken, or an error."""
        return self.ring.consumed & 0xFFFF != taken or bool(self._errors)

    def left_of(self, stream: Stream) -> int:
        """Returns 0: the manager has no completions for the client."""
        return 0

    def check_room(self) -> None:
        """Does nothing: the device stops a stream whose completion finds no room."""

    def clearing(self) -> Steps[None]:
        """Takes what the device has written, and frees the receive buffers that are not in use any
        more, in steps.
        """
        for completion in self.ring.take(self.cqe):
            self.context.hand_on(completion)
            yield
        while self._entries:
            posted = self._entries[0].wr_id
            yield from posted.closing()
            self._entries.popleft()
            posted.drop()
            self._completed(posted)
            yield

    def taking(self, count: int, errors: bool) -> Steps[list[Done]]:
        """Raises an error of a stream, if there is one, and returns nothing else."""
        yield from self.clearing()
        if errors and self._errors:
            raise self._errors.popleft()
        return []

    def closing(self) -> Steps[None]:
        """Closes the queue, in steps."""
        yield from self.clearing()
        self.close()


class DirectSending:
    """The sending half of a client's stream, whose work requests the client writes itself.

    The client also owns the LLP: it takes the FPDUs that leave, and the device sends no more of
    them before.

    Parameters
    ----------
    stream, queue
        The stream, and the queue for the messages that it sends.
    memory, request
        The client's memory, and its request for a ring there.
    page
        The client's doorbell page.
    stopped
        As in :class:`~.owned.OwnedQueue`.
    """

    def __init__(
        self,
        stream: OwnedStream,
        queue: DirectQueue,
        memory: Passed,
        request: protocol.SendRing,
        page: Page,
        stopped: Callable[[Stream, str], None],
    ) -> None:
        self._stream, self.queue, self._passed, self._stopped = stream, queue, memory, stopped
        self._context = context = stream.context
        if not context.sends:
            raise InvalidRequest("the device sends nothing, or the host does not get its FPDUs")
        size = request.size
        if not 1 <= size <= LARGEST_RING or not MULPDU[0] <= request.mulpdu <= LONGEST:
            raise InvalidRequest(
                f"a send ring must have from 2 to {1 << LARGEST_RING} entries, a power of two, and"
                f" a MULPDU from {MULPDU[0]} to {LONGEST}"
            )
        self._fpdus: deque[bytes] = deque()
        self._limit = _AHEAD
        shared = context.transport.share(memory.view(request.offset, ENTRY << size))
        self._memory: Memory = context.reached(shared)
        memory.holds += 1
        self._page, self._request = page, request

    def opening(self) -> Steps[None]:
        """Gives the ring to the device, in steps. Should they end early, :meth:`closing` takes back
        what there is.
        """
        number, asked = self._stream.number, self._request
        address = self._memory.extents[0].address
        for command in (
            commands.set_limit(number, self._limit),
            commands.set_sending(
                number, sequence=0, crc=asked.crc, markers=asked.markers, limited=True
            ),
            commands.set_mulpdu(number, asked.mulpdu),
            *(commands.set_sent_msn(number, qn, 1) for qn in sorted(self._stream.queues)),
            commands.set_send_ring(
                number, address, asked.size, cq=self.queue.ring.number, page=self._page.number
            ),
        ):
            self._context.registers.start(command)
            yield

    # -- the interface of a sending half to its context and its stream ----------------------------

    def answering(self, qn: int) -> None:
        """Returns None: the device does not answer Read Requests itself."""

    def leave(self, fpdu: SentFpdu) -> None:
        """Keeps an FPDU until the client takes it."""
        self._fpdus.append(fpdu.octets)

    def ended(self, status: SentStatus, done: int) -> None:
        """Logs why the half is closed; the client sees the completion itself."""
        if status is SentStatus.FAILED and not self._stream.disabled:
            registers = self._context.registers
            registers.write("SEND_STREAM", self._stream.number)
            lost = regs.BY_NAME["SEND_STATE"].unpack(registers.read("SEND_STATE"))["lost"]
            self._stopped(
                self._stream,
                "its producer index is more than a ring ahead, or its ring cannot be read"
                if lost
                else "a work request is not valid, or names memory that it may not send",
            )

    def taking(self) -> list[bytes]:
        """Returns FPDUs that have left, as many as fit in an answer, and lets others leave."""
        taken, octets = [], 0
        while self._fpdus and octets + len(self._fpdus[0]) + 4 <= _ANSWER:
            taken.append(self._fpdus.popleft())
            octets += len(taken[-1]) + 4
        if taken:
            self._limit += sum(map(len, taken))
            self._context.registers.start(commands.set_limit(self._stream.number, self._limit))
        return taken

    def closing(self) -> Steps[None]:
        """Takes the ring from the client and from the device, in steps, after the stream was
        disabled.
        """
        number, context = self._stream.number, self._context
        # From here on the client rings no more: the ring's entries are flushed, and no others come.
        context.registers.start(commands.set_send_page(number))
        context.registers.start(commands.set_limit(number, self._limit + _ALL))
        yield from context.settling(self.queue.ring)
        context.registers.start(commands.close_send_ring(number))
        yield from self._memory.closing()
        self._memory.close()
        self._passed.holds -= 1
