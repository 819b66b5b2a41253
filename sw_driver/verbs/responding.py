"""Read Requests that the device answers without the host."""

from __future__ import annotations

from heapq import heappush

from ...hdl.spec import commands
from ...hdl.spec.completion import Completion
from ...hdl.spec.send import ENTRY
from ..base.errors import ResourceExhausted
from ..transports.memory import Memory
from .cq import WC, Opcode, WcStatus
from .known import KnownStream

__all__ = ["Responder"]

#: The Queue Number of Read Requests, and their octets (RFC 5040 sections 4.1 and 4.4).
_QN, _OCTETS = 1, 28
_RSVDULP = 0x41 << 32  #: of a Read Request: version 1, opcode 1
#: Untagged queues of RFC 5041 begin with this MSN.
_FIRST = 1


class Responder:
    """Lets the device answer the Read Requests to a stream.

    Each request is placed in a slot of the host's memory, from which the device takes it. A request
    that the device does not answer, and any other message of the queue, has a completion in the
    stream's CQ.

    Parameters
    ----------
    stream
        The stream, which has a sending half.
    ird
        Requests that the peer may have outstanding, 1 or more.
    repeats
        Whether responses may be sent again: then a request stays in its slot while the peer has
        twice as many requests outstanding.
    """

    FIRST = _FIRST

    QN = _QN

    def __init__(self, stream: KnownStream, ird: int, *, repeats: bool = False) -> None:
        self._stream, self._context = stream, stream.pd.context
        self.ird, self._size = ird, (ird - 1).bit_length() + repeats
        self._buffers = self._run()
        self._memory = self._context.allocated(ENTRY << self._size)
        # A sorted list is a heap.
        self._context.buffers[:] = sorted({*self._context.buffers} - {*self._buffers})
        (extent,) = self._memory.extents
        self._address = extent.address
        registers = self._context.registers
        for msn in range(_FIRST, _FIRST + ird):
            slot = self._slot(msn)
            registers.start(
                commands.post(
                    stream.number, _QN, msn, address=self._address + ENTRY * slot, length=_OCTETS,
                    pages=0, cookie=slot, slot=self._buffers[slot],
                )
            )  # fmt: skip
        self._set(open=True)

    def _set(self, *, open: bool) -> None:
        self._context.registers.start(
            commands.set_responses(
                self._stream.number, self._address, self._size, ird=self.ird,
                buffer=self._buffers.start, msn=_FIRST, open=open,
            )
        )  # fmt: skip

    def _run(self) -> range:
        """Returns free places of the buffer table that follow each other, one for each slot.

        They are the last such places, because other buffers take the first places that are free.
        """
        free, count = sorted(self._context.buffers, reverse=True), 1 << self._size
        for last, first in zip(free, free[count - 1 :], strict=False):
            if last - first == count - 1:
                return range(first, last + 1)
        raise ResourceExhausted(
            f"the device has no {count} free receive buffers in a row for Read Requests: take"
            " completions first, or use a smaller ird"
        )

    def _slot(self, msn: int) -> int:
        return msn & (1 << self._size) - 1

    def slot(self, msn: int) -> tuple[Memory, int]:
        """Returns the memory of the requests, and where that of an MSN begins."""
        return self._memory, ENTRY * self._slot(msn)

    def complete(self, completion: Completion) -> None:
        """Gives a message of the queue to the CQ."""
        self._report(completion.tag, completion.length, completion.rsvdulp)

    def asked(self) -> int:
        """Returns how many requests were delivered, modulo 2**16."""
        registers = self._context.registers
        registers.start([commands.Write("SEND_STREAM", self._stream.number)])
        return (registers.read("RESPONSE_ASKED") - _FIRST) % (1 << 16)

    def refused(self, answered: int) -> None:
        """Gives the request to the CQ that the device could not answer, after it had answered
        ``answered`` others, modulo 2**16.
        """
        self._report((_FIRST + answered) % (1 << 16), _OCTETS, _RSVDULP)

    def _report(self, msn: int, length: int, rsvdulp: int) -> None:
        _, at = self.slot(msn)
        self._memory.pull(at, _OCTETS)
        octets = bytes(self._memory.view[at : at + min(length, _OCTETS)])
        self._stream.cq.put(
            WC(
                self._stream, WcStatus.SUCCESS, Opcode.RECV, octets, length, _QN, msn,
                rsvdulp=rsvdulp,
            )
        )  # fmt: skip

    def stop(self) -> None:
        """Begins no further response."""
        self._set(open=False)

    def close(self) -> None:
        """Frees memory and buffers, once the device answers no request any more."""
        self._memory.close()
        for number in self._buffers:
            heappush(self._context.buffers, number)
