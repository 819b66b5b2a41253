"""Proves that tagged segments that pass the checks are inside the region of their STag."""

from amaranth import *
from amaranth.hdl import Cover
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..ddp.stag import StagTable
from ..ddp.tagged import CheckResult, StreamRights, TaggedCheck
from ..lib.stream import delayed
from .harness import Harness, if_

__all__ = ["CheckedTable", "Inbounds"]

#: Entries of the table under proof; all rows are alike, and any one of them is followed.
ENTRIES = 4


class CheckedTable(wiring.Component):
    """Connects a checker and its table, as the datapath does.

    Latency, Throughput, Reset, Errors: those of the two blocks.
    """

    def __init__(self, *, table=StagTable, check=TaggedCheck):
        self.table = table(ENTRIES)
        self.check = check(ENTRIES)
        super().__init__({
            "i": In(self.check.i.signature.flip()),
            "rights": In(StreamRights()),
            "write": In(self.table.write.signature.flip()),
            "o": Out(stream.Signature(CheckResult(), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = self.table
        m.submodules.check = check = self.check
        wiring.connect(m, wiring.flipped(self.i), check.i)
        wiring.connect(m, wiring.flipped(self.write), table.write)
        wiring.connect(m, check.o, wiring.flipped(self.o))
        m.d.comb += [
            check.rights.eq(self.rights),
            table.index[0].eq(check.index),
            check.entry.eq(table.entry[0]),
        ]
        return m


class Inbounds(Harness):
    """Proves that a tagged segment with a length and a result without error is in its region.

    At the time of the look-up, the row that the STag selects had an entry that is valid, has the
    STag's key and the rest of its index, allows remote writes, and belongs to the segment's stream
    or Protection Domain. With the offset of the segment from the entry, by their TOs, ``address``
    is the entry's address plus that offset, and the offset plus the segment's length is at most the
    entry's length. All sums are modulo 2**64, so that nothing is assumed about the entry: a region
    that wraps is one that the host asked for.

    Assumes nothing: segments, settings of streams and writes to the table may arrive at any time.
    By induction of depth 1, with a lemma for the contents of each register during a look-up.
    """

    def rules(self, m):
        dut = self.dut
        shape = dut.write.payload.shape()["entry"].shape
        row = self.any(range(ENTRIES), name="row", constant=True)
        entry = Signal(shape)
        with m.If(dut.write.valid & (dut.write.payload.index == row)):
            m.d.sync += entry.eq(dut.write.payload.entry)

        # The table's contents, including writes of the next two cycles.
        storage = self.inside.row("table.ram.storage", row)
        write = self.inside.part("table.ram.storage")._write_ports[0]
        coming = write._en & (write._addr == row)
        written = data.View(dut.write.payload.shape(), self.inside["table.written"])
        before = self.inside["table.coming"] & (written.index == row)
        stored = Mux(coming, write._data, Value.cast(storage))
        stored = Mux(before, Value.cast(written.entry), stored)
        self.lemma(stored == Value.cast(entry), "the row's entry")

        # A segment is looked up two cycles after it arrives, when the rights of its stream come.
        given, came = dut.i.payload, dut.i.valid
        for cycle in range(2):
            given, came = (
                delayed(m, 1, value, f"{name}_{cycle}_given")
                for value, name in ((given, "near"), (came, "came")))
            self.lemma(Value.cast(given) == self.inside[f"check.near_{cycle}"], "near")
            self.lemma(came == self.inside[f"check.came_{cycle}"], "came")

        # Any one look-up of that row is followed; its result comes ``LATENCY`` - 2 cycles later.
        begin = self.any(1, name="begin")
        begun = Signal()
        age = Signal(TaggedCheck.LATENCY - 2)
        bits = ENTRIES.bit_length() - 1
        looked_up = given.stag[8 : 8 + bits]
        m.d.comb += begun.eq(begin & came & (looked_up == row) & ~age[:-1].any())
        m.d.sync += age.eq(Cat(begun, age))
        kept_entry = Signal(shape)
        kept = Signal(data.StructLayout({"header": given.shape(), "rights": StreamRights()}))
        with m.If(begun):
            m.d.sync += [
                kept_entry.eq(entry), kept.header.eq(given), kept.rights.eq(dut.rights)]
        self.lemma((age & (age - 1)) == 0, "one is followed")

        header, rights, result = kept.header, kept.rights, dut.o.payload
        if self.lemmas:
            self.pipeline(m, age, kept_entry, kept)
        due = Signal()
        m.d.comb += due.eq(age[-1])
        self.always(if_(due, dut.o.valid), "a result comes")
        placed = due & ~result.error & result.tagged & (result.length != 0)
        offset = Signal(64)
        m.d.comb += offset.eq(result.address - kept_entry.address)
        owner = Mux(kept_entry.bound, rights.stream, rights.pd)
        self.always(if_(placed, header.tagged & header.version & ~header.short), "a good header")
        self.always(if_(placed, result.length == header.length), "its length")
        self.always(if_(due, result.enable == rights.enable), "its stream's state")
        self.always(if_(placed, kept_entry.valid), "the entry is valid")
        self.always(if_(placed, kept_entry.key == header.stag[:8]), "its key")
        self.always(if_(placed, kept_entry.tag == header.stag[8 + bits :]), "its index")
        self.always(if_(placed, kept_entry.remote_write), "it allows remote writes")
        self.always(if_(placed, kept_entry.owner == owner), "its protection domain or stream")
        self.always(if_(placed, offset == (header.to - kept_entry.to)[:64]), "the place")
        self.always(if_(placed, header.to >= kept_entry.to), "TO is not below")
        self.always(if_(placed, offset + result.length <= kept_entry.length), "in bounds")
        self.always(if_(placed, header.to + header.length <= 1 << 64), "TO does not wrap")
        if "pages" in dict(shape):
            self.always(if_(placed, result.pages == kept_entry.pages), "its page code")
        m.d.comb += Cover(placed & (offset != 0) & kept_entry.bound, "a segment is placed")

    def pipeline(self, m, age, entry, kept):
        """Adds lemmas for the registers' contents during the look-up that is followed."""
        self.age = age
        shown, hidden = Signal(), Signal()
        with m.If(age[1]):
            m.d.sync += shown.eq(self.dut.check.entry.valid)
        self.segment_travels(m, kept)
        self.entry_travels(m, entry, kept, shown, hidden)
        self.sums_travel(m, entry, kept.header, shown)

    def holds(self, cycles, name, value, *, shown=None):
        """Adds a lemma: a register of the checker has a value, ``cycles`` after the look-up."""
        due = self.age[cycles - 1] if shown is None else self.age[cycles - 1] & shown
        self.lemma(if_(due, self.inside[f"check.{name}"] == Value.cast(value)), name)

    def travels(self, first, last, name, value, **options):
        """Adds a lemma for each register that a value passes through, one per cycle."""
        for cycles in range(first, last + 1):
            self.holds(cycles, f"{name}_{cycles - first}", value, **options)

    def segment_travels(self, m, kept):
        """Adds lemmas for the registers that depend on the segment alone."""
        header, rights, age = kept.header, kept.rights, self.age
        self.lemma((self.inside["check.valid"] & age[:-1]) == age[:-1], "it is on its way")
        total = Signal(65)
        m.d.comb += total.eq(header.to + header.length)
        self.travels(1, 8, "rest", Cat(
            header[name] for name in ("tagged", "last", "short", "version", "length")))
        self.travels(1, 3, "stag", header.stag)
        self.travels(1, 3, "rights", rights)
        self.travels(1, 5, "length", header.length)
        self.holds(1, "to_1_0", header.to)
        self.travels(2, 3, "to", header.to)
        self.travels(4, 9, "enable", rights.enable)
        self.holds(1, "first_low", (header.to[:32] + header.length)[:33])
        self.holds(2, "carry_0", (header.to[:32] + header.length)[32])
        self.holds(2, "ones", Cat(header.to.word_select(k, 4).all() for k in range(8, 16)))
        self.holds(2, "beyond", Cat(total[4 * k : 4 * k + 4].any() for k in range(4)))
        self.holds(3, "wraps", total > 1 << 64)
        self.travels(4, 9, "wrap", total > 1 << 64)
        self.holds(9, "short_0", header.short)
        self.holds(9, "tagged_version_0", ~header.version & header.tagged)
        self.holds(9, "version_0", ~header.version)
        self.holds(9, "unchecked_0", ~header.tagged | (header.length == 0))
        self.holds(9, "tagged_0", header.tagged)
        self.holds(9, "length_9_0", header.length)

    def entry_travels(self, m, entry, kept, shown, hidden):
        """Adds lemmas for the registers that depend on the entry, if the table has shown it."""
        header, rights, inside, age = kept.header, kept.rights, self.inside, self.age
        found = self.dut.check.entry
        read = inside.part("table.ram.storage")._read_ports[0]
        m.d.comb += hidden.eq(
            inside["table.none"] | Cat(inside[f"table.same{k}"].all() for k in range(3)).any())
        self.lemma(if_(age[0] & ~hidden, read._data == Value.cast(entry)), "the row is read")
        self.lemma(if_(age[1] & found.valid, found == entry), "the entry is shown")
        taken = inside["check.entry"]
        self.lemma(if_(age[2] & shown, taken == Value.cast(entry)), "the entry is taken")
        self.lemma(if_(age[2], data.View(found.shape(), taken).valid == (shown & entry.valid)),
                   "or is not valid")
        flow = {"shown": shown}
        bits = ENTRIES.bit_length() - 1
        same = Cat(entry.key, entry.tag) == Cat(header.stag[:8], header.stag[8 + bits :])
        key, alive = inside["check.key"].all(), inside["check.alive"]
        pd, bound = inside["check.pd"].all(), inside["check.stream_equal"].all()
        self.lemma(if_(age[3], alive == (shown & entry.valid)), "alive")
        self.lemma(if_(age[3] & shown, key == same), "key")
        self.lemma(if_(age[3] & shown, pd == (entry.owner == rights.pd)), "pd")
        self.lemma(if_(age[3] & shown, bound == (entry.owner == rights.stream)), "stream")
        self.holds(4, "bound", entry.bound, **flow)
        self.holds(4, "allowed", entry.remote_write, **flow)
        unknown, foreign = Signal(), Signal()
        owner = Mux(entry.bound, rights.stream, rights.pd)
        m.d.comb += [
            unknown.eq(~(shown & entry.valid & same)),
            foreign.eq(entry.owner != owner),
        ]
        self.holds(5, "unknown", unknown)
        self.holds(5, "foreign", foreign, **flow)
        self.holds(5, "forbidden", ~entry.remote_write, **flow)
        self.travels(6, 9, "unknown", unknown)
        self.travels(6, 9, "foreign", foreign, **flow)
        self.travels(6, 9, "forbidden", ~entry.remote_write, **flow)

    def sums_travel(self, m, entry, header, shown):
        """Adds lemmas for offset, room and address, which the checker computes in halves."""
        flow = {"shown": shown}
        offset, room, address = Signal(65), Signal(65), Signal(64)
        m.d.comb += [
            offset.eq(header.to - entry.to),
            room.eq(entry.length - offset[:64]),
            address.eq(entry.address + offset[:64]),
        ]
        low, short = room[:32], room[:32] < header.length
        self.holds(4, "offset_low", offset[:32], **flow)
        self.holds(4, "no_borrow", header.to[:32] >= entry.to[:32], **flow)
        self.travels(4, 4, "to_high", header.to[32:])
        self.travels(4, 4, "base_high", entry.to[32:], **flow)
        self.travels(4, 5, "size", entry.length, **flow)
        self.travels(4, 5, "host", entry.address, **flow)
        self.travels(4, 9, "pages", entry.pages, **flow)
        self.holds(5, "offset", offset[:64], **flow)
        self.holds(5, "above", ~offset[64], **flow)
        self.travels(6, 7, "above", ~offset[64], **flow)
        self.travels(6, 6, "offset_high", offset[32:64], **flow)
        self.travels(6, 6, "size_high", entry.length[32:], **flow)
        self.travels(6, 6, "host_high", entry.address[32:], **flow)
        self.travels(6, 6, "length_6", header.length)
        self.holds(6, "room_low", (entry.length[:32] - offset[:32])[:32], **flow)
        self.holds(6, "no_borrow_6", entry.length[:32] >= offset[:32], **flow)
        self.holds(6, "address_low", (entry.address[:32] + offset[:32])[:33], **flow)
        self.holds(7, "room_high", Cat(room[32:64], ~room[64]), **flow)
        self.holds(7, "address_high", address[32:], **flow)
        self.holds(7, "past", room[:16] < header.length, **flow)
        self.holds(7, "some", Cat(low[8 * k : 8 * k + 8].any() for k in range(4)), **flow)
        self.travels(7, 9, "address_low", address[:32], **flow)
        self.travels(8, 9, "address_high", address[32:], **flow)
        self.holds(8, "high", Cat(room[32 + 8 * k : 40 + 8 * k].any() for k in range(4)), **flow)
        self.holds(8, "negative", offset[64] | room[64], **flow)
        self.holds(8, "empty", low == 0, **flow)
        self.holds(8, "less", short, **flow)
        self.holds(9, "outside", offset[64] | room[64] | (room == 0), **flow)
        self.holds(9, "too_long", short & (room[32:64] == 0), **flow)
