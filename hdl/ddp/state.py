"""Keeps the error state of every stream."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import BlockRam

__all__ = ["ErrorState"]


class ErrorState(wiring.Component):
    """Keeps, for each stream, whether it is in error.

    Look-ups pass through in order, one per cycle, and each may be followed by an update of the same
    stream 4 cycles later. The state shown for a look-up includes all earlier updates.

    Latency: 4 cycles from ``index`` to ``ended``. Throughput: one look-up per cycle. Reset: the
    states stay. Errors: none.

    Members
    -------
    index : In(16)
        The stream to look up.
    ended : Out(1)
        The stream of four cycles ago is in error; combinational from registers.
    update : In(1), becomes : In(1)
        Sets the state of the stream of four cycles ago to ``becomes``.
    """

    def __init__(self, streams):
        self.streams = streams
        super().__init__({"index": In(16), "ended": Out(1), "update": In(1), "becomes": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.states = states = BlockRam(1, self.streams)
        # The value from the block RAM, in a register near the reader.
        near = Signal(reset_less=True)
        # index[k] came k cycles ago. The table lacks the updates of the last five look-ups. Four of
        # them are compared one cycle before the last one is known.
        index = [self.index, *(Signal(16, name=f"index{k}") for k in range(1, 8))]
        m.d.sync += [later.eq(earlier) for earlier, later in zip(index, index[1:], strict=False)]
        same, earlier_same, became = Signal(), Signal(4), Signal(4)
        state, before = near, Signal()
        for k in reversed(range(4)):
            state = Mux(earlier_same[k], became[k], state)
        m.d.comb += [
            states.address[0].eq(self.index),
            states.write.payload.address.eq(index[5]),
            self.ended.eq(Mux(same, became[0], before)),
        ]
        m.d.sync += [
            states.write.valid.eq(self.update),
            states.write.payload.data.eq(self.becomes),
            near.eq(states.data[0]),
            before.eq(state),
            same.eq(index[3] == index[4]),
            earlier_same.eq(Cat(index[2] == index[k] for k in range(4, 8))),
            became.eq(Cat(Mux(self.update, self.becomes, self.ended), became)),
        ]
        return m
