"""Keeps the credit of each stream: how far its FPDUs may go."""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..lib.blockram import ForwardedTable
from ..lib.stream import Store, delayed
from ..mpa.length import FpduLength

__all__ = ["PLENTY", "CreditAccounts", "CreditLimit", "CreditStart", "enough"]

QUEUE = 16
#: 2 to the power of this many words are more than the longest FPDU has, with markers.
PLENTY = 15


def enough(octets, markers):
    """Returns two numbers of words whose sum is enough for an FPDU with a ULPDU of ``octets``.

    Without markers, the FPDU has exactly these. With markers, it may have up to three fewer.
    """
    return (octets + Mux(markers, 21, 9)) >> 2, Mux(markers, (octets + 9) >> 9, 0)


class CreditStart(data.StructLayout):
    """The settings with which the sending half of ``stream`` opens.

    ``sequence`` (32), ``after`` (7), ``markers`` (1): as in :class:`~.departure.SendState`.
    ``limited`` (1): the stream has a limit. ``sctp`` (1): it sends over SCTP, where ``sequence``
    counts chunks; in a device with ``associations``, on an ``association``. ``open`` (1): otherwise
    the stream is closed, and its messages are given up.
    """

    def __init__(self, streams, associations=0):
        super().__init__({"stream": range(streams), **_Position(associations).members, "open": 1})


class CreditLimit(data.StructLayout):
    """The LLP sequence number ``limit`` (32) that no octet of ``stream`` may reach, or over SCTP
    the number that its chunks may have.
    """

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "limit": 32})


class _Position(data.StructLayout):
    """The position of a stream, after all segments of its turns; members as in CreditStart."""

    def __init__(self, associations=0):
        super().__init__({
            "sequence": 32, "after": 7, "markers": 1, "limited": 1, "sctp": 1,
            **({"association": range(associations)} if associations else {})})


class _Found(data.StructLayout):
    """The credit of a turn, in ``words`` (30) or over SCTP in chunks, and the ``position`` at which
    it begins.

    ``failed`` (1): the sending half of the stream has failed.
    """

    def __init__(self, associations):
        super().__init__({
            "stream": 12, "words": 30, "plenty": 1, "position": _Position(associations),
            "failed": 1})


class CreditAccounts(wiring.Component):
    """Says in each turn how much credit its stream has, and counts the segments of the turn.

    The position of a stream runs ahead of the one in :class:`~.departure.Departure` by the segments
    that were cut and have not left. A segment that does not leave closes its stream, and with it
    this account.

    Latency: 4 cycles from ``look`` to ``there``; 5 from ``ends`` to a look-up that sees the turn's
    segments. Throughput: a turn every 2 cycles, a segment per cycle. Reset: no turn; accounts stay.
    Errors: none.

    Parameters
    ----------
    streams : int
    associations : int
        Those of SCTP, whose streams have credit for chunks; or 0.

    Members
    -------
    set : In(stream.Signature(CreditStart(streams)))
        While no segment of the stream is under way.
    limits : In(stream.Signature(CreditLimit(streams), always_ready=True))
    closes : In(stream.Signature(range(streams), always_ready=True))
        A stream whose sending half has failed; until ``set`` opens it again.
    look : In(stream.Signature(range(streams), always_ready=True))
        The stream of a turn that is about to begin; at most 16 of them.
    there : Out(1)
        The next turn, after the one that ``begins`` if one does, can begin in the next cycle.
    words : Out(30), plenty, limited, markers, sctp, failed : Out(1)
        Of the turn that begins: its credit; that is enough for any FPDU, as 2 to the power of
        ``PLENTY`` words are; it has a limit; it has markers; it sends over SCTP, and with
        ``associations`` on the ``association`` : Out(range(associations)); its sending half has
        failed.
    begins, cuts, ends : In(1)
        The turn begins; it has a segment of ``octets`` In(17); it ends. Its first segment comes 2
        cycles after it begins or later, and its end 1 cycle.
    """

    def __init__(self, streams, *, associations=0):
        self.streams, self.associations, self.chunks = streams, associations, associations > 0
        over_sctp = {"association": Out(range(associations))} if associations else {}
        super().__init__({
            **over_sctp,
            "set": In(stream.Signature(CreditStart(streams, associations))),
            "limits": In(stream.Signature(CreditLimit(streams), always_ready=True)),
            "closes": In(stream.Signature(range(streams), always_ready=True)),
            "look": In(stream.Signature(range(streams), always_ready=True)),
            "there": Out(1), "words": Out(30), "plenty": Out(1), "limited": Out(1),
            "markers": Out(1),
            "sctp": Out(1), "failed": Out(1),
            "begins": In(1), "cuts": In(1), "octets": In(17), "ends": In(1),
        })

    def elaborate(self, platform):
        m = Module()
        position_of = _Position(self.associations)
        m.submodules.positions = positions = ForwardedTable(position_of, self.streams)
        m.submodules.limits_ = limits = ForwardedTable(32, self.streams)
        m.submodules.closed = closed = ForwardedTable(1, self.streams)
        m.submodules.turns = turns = Store(_Found(self.associations), depth=QUEUE)
        m.submodules.size = size = FpduLength()

        # The credit of a turn that is about to begin.
        came, number = Signal(3), delayed(m, 3, self.look.payload, "number")
        left, position, failed = Signal(signed(32)), Signal(position_of), Signal()
        found = turns.i.payload
        m.d.sync += [
            came.eq(Cat(self.look.valid, came)),
            left.eq(limits.data[0] - positions.data[0].sequence),
            position.eq(positions.data[0]),
            failed.eq(closed.data[0]),
        ]
        m.d.comb += [
            positions.address[0].eq(self.look.payload),
            closed.address[0].eq(self.look.payload),
            limits.address[0].eq(self.look.payload),
            limits.write.valid.eq(self.limits.valid),
            limits.write.payload.address.eq(self.limits.payload.stream),
            limits.write.payload.data.eq(self.limits.payload.limit),
            turns.i.valid.eq(came[2]),
            found.stream.eq(number),
            found.words.eq(Mux(left[-1], 0, Mux(
                position.sctp & self.chunks, left[:30] | left[30].replicate(30), left[2:]))),
            found.plenty.eq(~left[-1] & left[2 + PLENTY:].any()),
            found.position.eq(position),
            found.failed.eq(failed),
            self.there.eq(
                turns.i.valid | Mux(self.begins, turns.level[1:].any(), turns.o.valid)),
            self.words.eq(turns.o.payload.words),
            self.plenty.eq(turns.o.payload.plenty),
            self.limited.eq(turns.o.payload.position.limited),
            self.failed.eq(turns.o.payload.failed),
            self.markers.eq(turns.o.payload.position.markers),
            self.sctp.eq(turns.o.payload.position.sctp & self.chunks),
            turns.o.ready.eq(self.begins),
            size.octets.eq(self.octets),
        ]

        # The events of two cycles ago. A turn may begin in the cycle of another's end; here it
        # begins one cycle later.
        cuts, ends = delayed(m, 2, self.cuts, "cuts"), delayed(m, 2, self.ends, "ends")
        begins = delayed(m, 3, self.begins, "begins")
        turn = delayed(m, 3, turns.o.payload, "turn")
        found_in = _Found(self.associations)
        running, now = Signal(found_in, name="running"), Signal(found_in)
        becomes, opens = Signal(position_of), self.set.payload
        saved = Signal()
        m.d.comb += [
            now.eq(Mux(begins, turn, running)),
            size.markers.eq(now.position.markers),
            size.after.eq(now.position.after),
            becomes.eq(now.position),
        ]
        with m.If(cuts):
            m.d.comb += [
                becomes.sequence.eq(Mux(
                    now.position.sctp & self.chunks, now.position.sequence + 1,
                    size.added(now.position.sequence))),
                becomes.after.eq(size.then),
            ]
        m.d.sync += [running.eq(now), running.position.eq(becomes), saved.eq(ends)]
        written = positions.write.payload
        m.d.comb += [
            self.set.ready.eq(~saved & ~self.closes.valid),
            closed.write.valid.eq(self.closes.valid | (self.set.valid & ~saved)),
            closed.write.payload.address.eq(
                Mux(self.closes.valid, self.closes.payload, opens.stream)),
            closed.write.payload.data.eq(self.closes.valid | ~opens.open),
            positions.write.valid.eq(saved | self.set.valid),
            written.address.eq(Mux(saved, running.stream, opens.stream)),
            *(written.data[name].eq(Mux(saved, running.position[name], opens[name]))
              for name in position_of.members),
        ]
        if self.associations:
            m.d.comb += self.association.eq(turns.o.payload.position.association)
        return m
