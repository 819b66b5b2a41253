"""A client that does not look at its completion queue for a while, so that the queue fills."""

from __future__ import annotations

from ....hdl.spec.completion import OCTETS, phase
from ....sw_driver.rdmap import CQ
from ....sw_driver.verbs.context import Ring
from .lockstep import LockStep

__all__ = ["Rest"]

#: Cycles after which the queue interrupts: more than any test has.
_NEVER = (1 << 32) - 1


class Rest:
    """Keeps the driver from taking completions of one stream, from a queue of few entries.

    While the stream rests, the device writes completions to the queue, and nobody takes them. The
    golden model knows how many the queue holds: one more message puts the stream in error
    (``hdl/spec/completion.py``, *Overrun*). All other queues of the device are served as before.

    Parameters
    ----------
    cq
        The completion queue of one stream alone. All its completions were taken, and no message is
        on its way to the stream.
    stream
        The stream's number.
    size
        The base-2 logarithm of the entries that the queue has meanwhile.
    """

    def __init__(self, cq: CQ, stream: int, size: int) -> None:
        self._cq, self._stream = cq, stream
        self._former = cq.messages.ring.entries.bit_length() - 1
        # An interrupt that nobody takes would keep the simulation from letting time pass.
        self._replace(size, 2 << size, _NEVER)
        self._ring.take = lambda most: iter(())  # type: ignore[method-assign]
        self._sim.rooms[stream] = 1 << size

    @property
    def _ring(self) -> Ring:
        return self._cq.messages.ring

    @property
    def _sim(self) -> LockStep:
        sim = self._cq.context.transport
        assert isinstance(sim, LockStep)
        return sim

    def _replace(self, size: int, coalesce: int = 1, timeout: int = 0) -> None:
        """Lets the queue begin anew with 2**size entries."""
        context, before = self._cq.context, self._ring
        assert before is not context.rings[0], "others use this queue, too"
        ring = Ring(context, before.number, size, coalesce=coalesce, timeout=timeout)
        context.rings[context.rings.index(before)] = self._cq.messages.ring = ring
        before.memory.close()

    @property
    def full(self) -> bool:
        """True once the last entry of the queue is written."""
        ring = self._ring
        number = ring.consumed + ring.entries - 1
        octet = number % ring.entries * OCTETS + OCTETS - 1
        return ring.memory.view[octet] & 1 == phase(number, ring.entries.bit_length() - 1)

    def end(self) -> None:
        """Lets the driver take the completions again."""
        del self._ring.take
        del self._sim.rooms[self._stream]

    def restore(self) -> None:
        """Gives the queue as many entries as before, once all completions were taken."""
        self._replace(self._former)
