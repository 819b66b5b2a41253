"""Joins the reads of two managers on one bus."""

from amaranth import *
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.stream import Skid
from .axi import AxiRead

__all__ = ["ReadersJoin"]


class ReadersJoin(wiring.Component):
    """Lets two managers read on one bus, in turns. The highest bit of an ID names the manager.

    Both must take each beat in its cycle, so that neither one holds up the other.

    Latency: 1 cycle from ``ar``; none to ``r``. Throughput: one address and one beat per cycle.
    Reset: empty. Errors: those of the bus go to the manager that reads.

    Parameters
    ----------
    width : int
        Bits of a beat.
    one, other : int
        IDs of each manager.

    Members
    -------
    one, other : In(AxiRead)
    bus : Out(AxiRead(width, ids))
        With twice as many IDs as the manager with more of them has.
    """

    def __init__(self, width, one, other):
        super().__init__({
            "one": In(AxiRead(width, one)),
            "other": In(AxiRead(width, other)),
            "bus": Out(AxiRead(width, 2 * max(one, other))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = Skid(self.bus.ar.payload.shape())
        wiring.connect(m, skid.o, wiring.flipped(self.bus.ar))
        one, other = self.one, self.other
        # The manager that had no turn for longer; it has the next one if it wants it.
        favored, second = Signal(), Signal()
        m.d.comb += [
            second.eq(other.ar.valid & (favored | ~one.ar.valid)),
            skid.i.valid.eq(one.ar.valid | other.ar.valid),
            one.ar.ready.eq(skid.i.ready & ~second),
            other.ar.ready.eq(skid.i.ready & second),
            self.bus.r.ready.eq(1),
        ]
        with m.If(skid.i.valid & skid.i.ready):
            m.d.sync += favored.eq(~second)
        request = skid.i.payload
        for which, reader in enumerate((one, other)):
            address, beat = reader.ar.payload, self.bus.r.payload
            with m.If(second == which):
                m.d.comb += [
                    request.addr.eq(address.addr), request.len.eq(address.len),
                    request.id[:len(address.id)].eq(address.id), request.id[-1].eq(which),
                ]
            m.d.comb += [
                reader.r.valid.eq(self.bus.r.valid & (beat.id[-1] == which)),
                *(reader.r.payload[name].eq(beat[name]) for name in ("data", "resp", "last", "id")),
            ]
        return m
