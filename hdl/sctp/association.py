"""Looks up the association that an SCTP packet belongs to."""

from functools import reduce
from operator import xor

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.blockram import BlockRam
from ..lib.delay import Delay
from ..lib.stream import any_of, delayed, nibbles
from ..spec.net import KEY_FIELDS, WAYS, hash_bits, slot_bits
from .frame import Frame, Kind

__all__ = ["AssociationEntry", "AssociationResult", "AssociationTable", "AssociationWrite"]


class AssociationEntry(data.StructLayout):
    """An entry of the association table.

    Members
    -------
    valid : 1
    source, destination : 128, source_port, destination_port : 16, tag : 32, v6 : 1
        The values in a :class:`~.frame.Frame` of the association.
    association : range(associations)
    first : 16
        DDP Stream of SCTP stream 0.
    streams : 16
        SCTP streams that are DDP Streams; those from this number on are not. The device has all
        of these DDP Streams: Control counts no others.
    """

    def __init__(self, associations):
        super().__init__({
            "valid": 1, **dict(KEY_FIELDS),
            "association": range(associations), "first": 16, "streams": 16,
        })


class AssociationWrite(data.StructLayout):
    """A write of ``entry`` to ``slot`` of a ``way``; :mod:`..spec.net` computes the slot."""

    def __init__(self, associations):
        super().__init__({
            "way": range(WAYS), "slot": slot_bits(associations),
            "entry": AssociationEntry(associations),
        })


class AssociationResult(data.StructLayout):
    """The result of a look-up.

    ``kind`` of the frame; ``found``; ``association``, ``first`` and ``streams`` of the entry, or 0.
    """

    def __init__(self, associations):
        super().__init__({
            "kind": Kind, "found": 1,
            "association": range(associations), "first": 16, "streams": 16,
        })


class AssociationTable(wiring.Component):
    """Finds the association of an SCTP packet, by addresses, ports and Verification Tag
    (RFC 9260 section 8.5).

    The table is hashed in two ways: an association has one slot in each way, and the host writes it
    to either. While the host moves a key, both slots may hold the same entry.

    Entries are written and compared in ``words``, one per cycle: the narrower the datapath, the
    more cycles an SCTP packet takes to pass, and the less block RAM and the fewer comparators are
    needed.

    A write takes effect for the frames after it. For frames from ``words`` cycles before it to
    ``words - 2`` cycles after it, the slot reads as empty.

    Latency: ``latency``: 7 cycles and one per word. Throughput: one frame per cycle; SCTP frames,
    and writes, one every ``words`` cycles. Reset: the entries stay, no look-up or write is under
    way. Errors: nothing is found for a frame that is not SCTP.

    Parameters
    ----------
    associations : int
        From 2 up to 65536.
    words : int
        Words of an entry: 1, 2 or 4.

    Members
    -------
    i : In(stream.Signature(Frame(), always_ready=True))
        The key fields of an SCTP frame must stay for ``words`` cycles.
    write : In(stream.Signature(AssociationWrite(associations), always_ready=True))
        Its payload must stay for ``words`` cycles.
    o : Out(stream.Signature(AssociationResult(associations), always_ready=True))
        One result for each frame.
    """

    def __init__(self, *, associations=64, words=1):
        if not isinstance(associations, int):
            raise TypeError(f"Associations must be an integer, not {associations!r}")
        if not 2 <= associations <= 1 << 16:
            raise ValueError(f"Associations must be from 2 to 65536, not {associations!r}")
        if words not in (1, 2, 4):
            raise ValueError(f"Words of an entry must be 1, 2 or 4, not {words!r}")
        self.associations = associations
        self.words = words
        self.latency = 7 + words
        super().__init__({
            "i": In(stream.Signature(Frame(), always_ready=True)),
            "write": In(stream.Signature(AssociationWrite(associations), always_ready=True)),
            "o": Out(stream.Signature(AssociationResult(associations), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        frame, entry = self.i.payload, self.write.payload.entry
        wanted = Cat(*(frame[name] for name, _ in KEY_FIELDS), 1)
        told = Cat(entry.association, entry.first, entry.streams)
        # The result's fields follow the key in an entry, and begin at an octet.
        key_octets = -(-len(wanted) // 8)
        octets = -(-(8 * key_octets + len(told)) // (8 * self.words))
        held = Cat(*(entry[name] for name, _ in KEY_FIELDS), entry.valid)
        held = Cat(held, C(0, 8 * key_octets - len(held)), told)

        # The words of the key that is looked for, from cycle 0 on; compared in cycle 4.
        _, turn = self._turns(m, self.i.valid & (frame.kind == Kind.SCTP))
        m.submodules.keys = keys = Delay(8 * octets, 4)
        m.d.comb += keys.i.eq(self._word(wanted, turn, octets))
        first, last = (delayed(m, cycles, turn == at, name) for cycles, at, name in (
            (7, 0, "first"), (4, self.words - 1, "last")))

        # The words of an entry.
        writing, part = self._turns(m, self.write.valid)
        write_slot = Signal.like(self.write.payload.slot)
        write_turn = Signal.like(turn)
        write_data = Signal(8 * octets)
        m.d.sync += [
            write_slot.eq(self.write.payload.slot),
            write_turn.eq(part),
            write_data.eq(self._word(held, part, octets)),
        ]

        hits, said = [], []
        for way in range(WAYS):
            m.submodules[f"way_{way}"] = ram = BlockRam(
                8 * octets, self.words << len(write_slot))
            write = ram.write
            slot = Cat(
                self._folded(m, [frame[name][bit] for name, bit in terms])
                for terms in hash_bits(way, len(write_slot)))
            m.d.sync += write.valid.eq(writing & (self.write.payload.way == way))
            m.d.comb += [
                write.payload.address.eq(Cat(write_turn, write_slot)),
                write.payload.data.eq(write_data),
                ram.address[0].eq(Cat(delayed(m, 2, turn, "turn"), slot)),
            ]
            # A word that is read while its entry is being written is hidden; so a look-up never
            # combines old and new words. Compared in nibbles.
            same, hidden = Signal(len(nibbles(slot, write_slot))), Signal()
            word = ram.data[0]
            m.d.sync += [
                same.eq(nibbles(slot, write_slot) & write.valid.replicate(len(same))),
                hidden.eq(same.all()),
            ]
            hit = self._compare(m, keys.o, word, hidden, last, key_octets)
            so_far = Signal()
            hits.append(hit & (first | so_far))
            m.d.sync += so_far.eq(hits[-1])
            lowest = 8 * (key_octets - (self.words - 1) * octets)
            said.append(delayed(m, 3, word[lowest : lowest + len(told)], "told"))

        # At most one way has an entry, or both have the same.
        valid = Signal(self.latency)
        kind = delayed(m, self.latency - 1, Value.cast(frame.kind), "kind")
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

    def _turns(self, m, begin):
        """Returns whether a word has its turn, and its number, from ``begin`` on."""
        turn = Signal(exact_log2(self.words))
        under_way = begin | turn.any()
        with m.If(under_way):
            m.d.sync += turn.eq(turn + 1)
        return under_way, turn

    def _word(self, value, turn, octets):
        """Returns the word of ``octets`` octets of ``value`` whose turn it is."""
        return Cat(value, C(0, 8 * octets * self.words - len(value))).word_select(turn, 8 * octets)

    def _folded(self, m, bits):
        """Returns the exclusive-or of the bits, two cycles later."""
        for name in ("folded", "hashed"):
            parts = [bits[at : at + 8] for at in range(0, len(bits), 8)]
            bits = Signal(len(parts), name=name, reset_less=True)
            m.d.sync += bits.eq(Cat(reduce(xor, part) for part in parts))
        assert len(bits) == 1
        return bits

    def _compare(self, m, key, word, hidden, last, key_octets):
        """Returns whether a word equals its part of the key, three cycles later.

        The last word of an entry is only partly key.
        """
        octets = len(word) // 8
        own = key_octets - (self.words - 1) * octets
        equal = [~hidden]
        for at in range(octets):
            part = key.word_select(at, 8) == word.word_select(at, 8)
            equal.append(part if at < own else part | last)
        for _ in range(3):
            level = Signal(len(equal), name="equal", reset_less=True)
            m.d.sync += level.eq(Cat(equal))
            equal = [level[at : at + 7].all() for at in range(0, len(level), 7)]
        return equal[0]
