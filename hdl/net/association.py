"""The associations: which one an SCTP packet belongs to."""

from functools import reduce
from operator import xor

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.net import HASH_BITS, KEY_FIELDS, WAYS, hash_bits
from ..stream import any_of, delayed
from ..table import Table
from .delay import Delay
from .frame import Frame, Kind

__all__ = ["AssociationEntry", "AssociationResult", "AssociationTable", "AssociationWrite"]


class AssociationEntry(data.StructLayout):
    """An entry of the table.

    Members
    -------
    valid : 1
    source, destination : 128, source_port, destination_port : 16, tag : 32, v6 : 1
        As in a :class:`~.frame.Frame` of the association.
    association : range(associations)
    first : 16
        DDP Stream of SCTP stream 0.
    streams : 16
        SCTP streams that are DDP Streams; those from this number on are not.
    """

    def __init__(self, associations):
        super().__init__({
            "valid": 1, **dict(KEY_FIELDS),
            "association": range(associations), "first": 16, "streams": 16,
        })


class AssociationWrite(data.StructLayout):
    """An ``entry`` for a ``place`` of a ``way``, which :mod:`...spec.net` tells."""

    def __init__(self, associations):
        super().__init__({
            "way": range(WAYS), "place": HASH_BITS, "entry": AssociationEntry(associations),
        })


class AssociationResult(data.StructLayout):
    """What a look-up finds: ``kind`` of the frame; ``found``; ``association``, ``first`` and
    ``streams`` of the entry, or 0.
    """

    def __init__(self, associations):
        super().__init__({
            "kind": Kind, "found": 1,
            "association": range(associations), "first": 16, "streams": 16,
        })


class AssociationTable(wiring.Component):
    """Finds the association of an SCTP packet, by addresses, ports and Verification Tag
    (RFC 9260 section 8.5).

    Two-way hashed: an association has one place in each way, and the host writes it to either. A
    key that is in both has the same entry twice for as long as the host moves it.

    A write counts for the frames that come after it. For a frame of its own cycle, or one or two
    cycles before, the place reads as empty.

    Latency: 8 cycles. Throughput: a look-up and a write each cycle. Reset: the entries stay, no
    look-up is under way. Errors: nothing is found for a frame that is not SCTP.

    Parameters
    ----------
    associations : int
        From 2 up to 65536.

    Members
    -------
    i : In(stream.Signature(Frame(), always_ready=True))
    write : In(stream.Signature(AssociationWrite(associations), always_ready=True))
    o : Out(stream.Signature(AssociationResult(associations), always_ready=True))
        One for each frame.
    """

    LATENCY = 8

    def __init__(self, *, associations=64):
        if not isinstance(associations, int):
            raise TypeError(f"Associations must be an integer, not {associations!r}")
        if not 2 <= associations <= 1 << 16:
            raise ValueError(f"Associations must be from 2 to 65536, not {associations!r}")
        self.associations = associations
        super().__init__({
            "i": In(stream.Signature(Frame(), always_ready=True)),
            "write": In(stream.Signature(AssociationWrite(associations), always_ready=True)),
            "o": Out(stream.Signature(AssociationResult(associations), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        frame, write = self.i.payload, self.write.payload
        m.submodules.keys = keys = Delay(data.StructLayout(dict(KEY_FIELDS)), 4)
        m.d.comb += [keys.i[name].eq(frame[name]) for name, _ in KEY_FIELDS]

        hits, said = [], []
        for way in range(WAYS):
            m.submodules[f"way_{way}"] = table = Table(
                AssociationEntry(self.associations), 1 << HASH_BITS, live="valid")
            m.d.comb += [
                table.write.valid.eq(self.write.valid & (write.way == way)),
                table.write.payload.index.eq(write.place),
                table.write.payload.entry.eq(write.entry),
            ]
            m.d.comb += table.index[0].eq(Cat(
                self._folded(m, [frame[name][bit] for name, bit in terms])
                for terms in hash_bits(way)))
            hit, told = self._compare(m, keys.o, table.entry[0])
            hits.append(hit)
            said.append(told)

        # Cycle 8: there is an entry in one way, or in both the same.
        valid = Signal(self.LATENCY)
        kind = delayed(m, self.LATENCY - 1, Value.cast(frame.kind), "kind")
        found = [hit & (kind == Kind.SCTP.value) for hit in hits]
        result = self.o.payload
        m.d.comb += self.o.valid.eq(valid[-1])
        m.d.sync += [
            valid.eq(Cat(self.i.valid, valid)),
            result.kind.eq(kind),
            result.found.eq(Cat(found).any()),
            Cat(result.association, result.first, result.streams).eq(any_of(
                Mux(which, told, 0) for which, told in zip(found, said, strict=True))),
        ]
        return m

    def _folded(self, m, bits):
        """The exclusive-or of the bits, two cycles later."""
        for name in ("folded", "hashed"):
            parts = [bits[at : at + 8] for at in range(0, len(bits), 8)]
            bits = Signal(len(parts), name=name, reset_less=True)
            m.d.sync += bits.eq(Cat(reduce(xor, part) for part in parts))
        assert len(bits) == 1
        return bits

    def _compare(self, m, key, entry):
        """Whether the entry is the key's, and what it says, three cycles later."""
        # Cycle 5: in octets; 6 and 7: all of them.
        equal = [entry.valid]
        for name, bits in KEY_FIELDS:
            equal += [key[name][at : at + 8] == entry[name][at : at + 8]
                      for at in range(0, bits, 8)]
        for _ in range(3):
            level = Signal(len(equal), name="equal", reset_less=True)
            m.d.sync += level.eq(Cat(equal))
            equal = [level[at : at + 7].all() for at in range(0, len(level), 7)]
        told = Cat(entry.association, entry.first, entry.streams)
        return equal[0], delayed(m, 3, told, "told")
