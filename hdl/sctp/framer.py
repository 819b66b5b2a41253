"""Makes SCTP packets of DDP Segments and session control messages, each a frame with one DATA chunk
(RFC 5043 section 5.2).

The data's way::

    heads ─ TsnTurn ─ CheckPass ┬ CRC32C, UDP checksum ─ PacketPlans ─┐
    i ─────────────────────────►└ packet buffer ──────────────────────┴ PacketPass ─ Realign ─ o

The CRC and the UDP checksum stand before the octets that they cover, so a packet passes twice.
:data:`~..spec.sctp.PATH_AREA` says where the headers are. Each field has fixed lanes, and the frame
moves to its first lane at the end.
"""

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..ddp.leaving import SentBeat, SentRecord
from ..dma.rotate import Rotate
from ..lib.blockram import BlockRam, ForwardedTable
from ..lib.crc32c import Crc32c, Slice
from ..lib.delay import Delay
from ..lib.stream import Backlog, Beat, Stage, Store, delayed
from ..spec.sctp import (
    DATA_HEADER,
    PACKET_OCTETS,
    PATH_AREA,
    PATH_HEADERS,
    SSN,
    ChunkType,
    DataFlag,
    Ppid,
)

__all__ = ["ChunkFramer", "ChunkHead", "PathSetting", "PathWord"]

#: Halves of 16 bits in the headers' area, and where the SCTP packet begins.
HALVES, PACKET = PATH_AREA // 2, PATH_HEADERS // 2
#: Octets of the common header, the chunk's header and the DDP-SSN.
FIXED = PATH_AREA - PATH_HEADERS
UDP_HEADER = 8
QUEUE = 32


class ChunkHead(data.StructLayout):
    """The numbers of one chunk, which come beside its octets.

    Members
    -------
    length : 16
        Octets after the DDP-SSN, from 2 to LONGEST_BODY.
    control : 1
        A session control message; otherwise a DDP Segment.
    association : range(associations)
    stream : 16
        The DDP Stream.
    sid, ssn : 16
        The SCTP stream, and the DDP-SSN.
    again : 1
        The chunk was sent before with ``tsn`` (32).
    record : SentRecord()
    """

    def __init__(self, associations):
        super().__init__({
            "length": 16, "control": 1, "association": range(associations), "stream": 16,
            "sid": 16, "ssn": 16, "again": 1, "tsn": 32, "record": SentRecord()})


class _Path(data.StructLayout):
    """The facts about an association's packets; first octets lowest.

    Members
    -------
    ports, tag : 32
        The first eight octets of the common header.
    first : range(PATH_AREA // 4)
        The word of the area with which the frame begins.
    udp, v6 : 1
    ip_sum : 16
        Sum of the IPv4 header in halves, without its length and its checksum.
    udp_sum : 16
        Sum of the pseudo-header and of the UDP header, without lengths and checksum.
    """

    def __init__(self):
        super().__init__({
            "ports": 32, "tag": 32, "first": range(PATH_AREA // 4), "udp": 1, "v6": 1,
            "ip_sum": 16, "udp_sum": 16})


class PathSetting(data.StructLayout):
    """The ``path`` (a _Path) of an ``association``, and the ``tsn`` (32) of its next chunk."""

    def __init__(self, associations):
        super().__init__({"association": range(associations), "path": _Path(), "tsn": 32})


class PathWord(data.StructLayout):
    """A ``word`` (32) of the headers of an ``association``: that with number ``at``."""

    def __init__(self, associations):
        super().__init__({
            "association": range(associations), "at": range(PATH_AREA // 4), "word": 32})


class _Numbered(data.StructLayout):
    """A chunk with its ``head``, its ``path`` and its ``tsn``."""

    def __init__(self, associations):
        super().__init__({"head": ChunkHead(associations), "path": _Path(), "tsn": 32})


class _Plan(data.StructLayout):
    """A packet whose every octet is known.

    Members
    -------
    chunk : _Numbered(associations)
    crc : 32
    ip_sum, udp_sum : 16
        Checksums.
    chunk_length, udp_length, ip_length : 16
        Fields, the lower octet of the number lowest.
    rows : 12
        Beats of octets after the DDP-SSN, with padding.
    count : range(octets + 1)
        Octets of the frame's last beat.
    flush : 1
        The last beat has octets of the last row alone.
    """

    def __init__(self, associations, octets):
        super().__init__({
            "chunk": _Numbered(associations), "crc": 32, "ip_sum": 16, "udp_sum": 16,
            "chunk_length": 16, "udp_length": 16, "ip_length": 16, "rows": 12,
            "count": range(octets + 1), "flush": 1})


def _marked(m, cycles, mark):
    """Returns ``mark`` as it was ``cycles`` ago, and 0 after a reset."""
    marks = Signal(cycles, name="marks")
    m.d.sync += marks.eq(Cat(mark, marks))
    return marks[-1]


def _turned(half):
    """Returns 16 bits with their octets in the other order."""
    return Cat(half[8:16], half[:8])


def _halves(chunk, crc, length):
    """Returns the halves of the area from PACKET on (RFC 9260 sections 3.1 and 3.3.1)."""
    head, path = chunk.head, chunk.path
    ppid = Mux(head.control, int(Ppid.CONTROL), int(Ppid.SEGMENT))
    flags = DataFlag.BEGINNING | DataFlag.ENDING | DataFlag.UNORDERED
    tsn = chunk.tsn
    return [
        path.ports[:16], path.ports[16:], path.tag[:16], path.tag[16:], crc[:16], crc[16:],
        C(int(ChunkType.DATA) | int(flags) << 8, 16), _turned(length), _turned(tsn[16:]),
        _turned(tsn[:16]), _turned(head.sid), C(0, 16), C(0, 16), Cat(C(0, 8), C(0, 8) | ppid)[:16],
        _turned(head.ssn),
    ]


class TsnTurn(wiring.Component):
    """Gives each chunk its TSN, and the path of its association (RFC 9260 section 3.3.1).

    A chunk that is sent again keeps its TSN.

    Latency: 3 cycles. Throughput: one chunk in 2 cycles. Reset: empty; paths and TSNs stay. Errors:
    none.

    Members
    -------
    set : In(stream.Signature(PathSetting(associations)))
        Replaces a path, while no chunk of the association is under way.
    i : In(stream.Signature(ChunkHead(associations)))
    o : Out(stream.Signature(_Numbered(associations)))
    """

    def __init__(self, associations):
        self.associations = associations
        super().__init__({
            "set": In(stream.Signature(PathSetting(associations))),
            "i": In(stream.Signature(ChunkHead(associations))),
            "o": Out(stream.Signature(_Numbered(associations))),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.paths = paths = ForwardedTable(_Path(), self.associations)
        m.submodules.tsns = tsns = ForwardedTable(32, self.associations)
        m.submodules.queue = queue = Store(_Numbered(self.associations), depth=8)
        wiring.connect(m, queue.o, wiring.flipped(self.o))
        takes, looks, known = Signal(), Signal(), Signal()
        head, setting = delayed(m, 2, self.i.payload, "head"), self.set.payload
        counts, chunk = Signal(), queue.i.payload
        m.d.comb += [
            takes.eq(self.i.valid & ~looks & queue.half),
            self.i.ready.eq(takes),
            paths.address[0].eq(self.i.payload.association),
            tsns.address[0].eq(self.i.payload.association),
            queue.i.valid.eq(known),
            chunk.head.eq(head),
            chunk.path.eq(paths.data[0]),
            chunk.tsn.eq(Mux(head.again, head.tsn, tsns.data[0])),
            counts.eq(known & ~head.again),
            self.set.ready.eq(~counts),
            paths.write.valid.eq(self.set.valid & self.set.ready),
            paths.write.payload.address.eq(setting.association),
            paths.write.payload.data.eq(setting.path),
            tsns.write.valid.eq(self.set.valid | counts),
            tsns.write.payload.address.eq(
                Mux(counts, head.association, setting.association)),
            tsns.write.payload.data.eq(Mux(counts, tsns.data[0] + 1, setting.tsn)),
        ]
        m.d.sync += [looks.eq(takes), known.eq(looks)]
        return m


class HalvesSum(wiring.Component):
    """Adds up the halves of packets, without carry (RFC 1071).

    Latency: from the last beat 2 cycles at 64 bits, 3 at 128 and 256, 4 at 512. Throughput: one
    beat per cycle. Reset: the next beat begins a packet. Errors: none.

    Members
    -------
    valid, last : In(1), i : In(width)
    o : Out(stream.Signature(32, always_ready=True))
    """

    def __init__(self, width):
        self.width = width
        super().__init__({
            "valid": In(1), "last": In(1), "i": In(width),
            "o": Out(stream.Signature(32, always_ready=True))})

    def elaborate(self, platform):
        m = Module()
        parts = [self.i.word_select(k, 16) for k in range(self.width // 16)]
        valid, last = self.valid, self.last
        while len(parts) > 1:
            groups = [parts[at:at + 4] for at in range(0, len(parts), 4)]
            parts = [Signal(len(parts[0]) + 2, name="part", reset_less=True) for _ in groups]
            m.d.sync += [part.eq(sum(group)) for part, group in zip(parts, groups, strict=True)]
            valid, last = _marked(m, 1, valid), delayed(m, 1, last, "last")
        total, first = Signal(32, reset_less=True), Signal(init=1)
        with m.If(valid):
            m.d.sync += [total.eq(parts[0] + Mux(first, 0, total)), first.eq(last)]
        m.d.sync += self.o.valid.eq(valid & last)
        m.d.comb += self.o.payload.eq(total)
        return m


class CheckPass(wiring.Component):
    """Lets a packet pass for its checksums, and keeps the octets after the DDP-SSN in the
    buffer.

    Latency: 1 cycle to ``check``. Throughput: one beat per cycle; a packet has ``rows`` beats
    beside those of its octets. Reset: empty. Errors: none.

    Members
    -------
    chunks : In(stream.Signature(_Numbered(associations)))
    i : In(stream.Signature(Beat(width)))
    go : In(1)
        There is room for two packets, and for ``rows`` beats in the buffer.
    o : Out(stream.Signature(_Numbered(associations), always_ready=True))
        A packet has passed.
    body : Out(stream.Signature(width, always_ready=True))
        A beat of a packet for the buffer.
    check : Out(stream.Signature(Slice(width, 2), always_ready=True))
        The SCTP packet, with a CRC of 0. Octets before it are 0.
    """

    def __init__(self, width, associations):
        self.width, self.associations = width, associations
        super().__init__({
            "chunks": In(stream.Signature(_Numbered(associations))),
            "i": In(stream.Signature(Beat(width))),
            "go": In(1),
            "o": Out(stream.Signature(_Numbered(associations), always_ready=True)),
            "body": Out(stream.Signature(width, always_ready=True)),
            "check": Out(stream.Signature(Slice(width, 2), always_ready=True)),
        })

    @property
    def rows(self):
        """Beats before those of the octets: they hold the fixed octets."""
        return -(-FIXED // (self.width // 8))

    def elaborate(self, platform):
        m = Module()
        octets, rows = self.width // 8, self.rows
        chunk, beat, check = self.chunks.payload, self.i.payload, self.check.payload
        skipped = rows * octets - FIXED
        length = (chunk.head.length + DATA_HEADER + SSN)[:16]
        area = Cat(C(0, 8 * skipped), *_halves(chunk, C(0, 32), length))

        # The padding may need a beat of its own, of which only zeros count.
        row, tail = Signal(range(rows + 1)), Signal()
        begins, takes, tails = Signal(), Signal(), Signal()
        padded, over = Signal(range(octets + 4)), Signal()
        masked = beat.data & Cat((at < beat.count).replicate(8) for at in range(octets))
        ends = Signal()
        m.d.comb += [
            begins.eq(self.chunks.valid & (row < rows) & self.go),
            takes.eq(self.i.valid & (row == rows) & ~tail & self.go),
            tails.eq(tail & self.go),
            self.i.ready.eq((row == rows) & ~tail & self.go),
            padded.eq((((beat.count + 1) >> 2) << 2) + 2),
            over.eq(padded > octets),
            ends.eq((takes & beat.last & ~over) | tails),
            self.chunks.ready.eq(ends),
        ]
        with m.If(begins):
            m.d.sync += row.eq(row + 1)
        with m.If(takes & beat.last):
            m.d.sync += tail.eq(over)
        with m.If(ends):
            m.d.sync += [row.eq(0), tail.eq(0)]
        m.d.sync += [
            self.check.valid.eq(begins | takes | tails),
            check.data.eq(Mux(row < rows, area.word_select(row, self.width), Mux(tail, 0, masked))),
            check.open.eq(begins & ~row.any()),
            check.close.eq(ends),
            check.cut.eq(Mux(row < rows, skipped // 2, Mux(tail, 1, padded >> 1))),
            check.end.eq(octets // 2),
            self.body.valid.eq(takes | tails),
            self.body.payload.eq(Mux(tail, 0, masked)),
            self.o.valid.eq(ends),
            self.o.payload.eq(chunk),
        ]
        return m


class PacketPlans(wiring.Component):
    """Computes the lengths and checksums of packets (RFC 791, RFC 768, RFC 8200, RFC 6951).

    Latency: ``LATENCY`` cycles. Throughput: one packet per cycle. Reset: empty. Errors: none.

    Members
    -------
    valid : In(1), chunk : In(_Numbered(associations)), crc, sum : In(32)
    o : Out(stream.Signature(_Plan(associations, octets), always_ready=True))
    """

    LATENCY = 6

    def __init__(self, width, associations):
        self.width, self.associations = width, associations
        super().__init__({
            "valid": In(1), "chunk": In(_Numbered(associations)), "crc": In(32), "sum": In(32),
            "o": Out(stream.Signature(_Plan(associations, width // 8), always_ready=True)),
        })

    def elaborate(self, platform):
        m = Module()
        octets, words = self.width // 8, self.width // 32

        def stage(name, value, shape):
            later = Signal(shape, name=name, reset_less=True)
            m.d.sync += later.eq(value)
            return later

        def folded(value):
            return value[:16] + value[16:]

        chunk, plan = self.chunk, self.o.payload
        m.submodules.chunks = chunks = Delay(_Numbered(self.associations), 5)
        m.d.comb += chunks.i.eq(chunk)
        path = [delayed(m, 1 + at, chunk.path, f"path{at}_") for at in range(4)]
        # 0: from the queues.
        length = stage("length", chunk.head.length, 16)
        crc, halves = stage("crc", self.crc, 32), stage("halves", self.sum, 32)
        # 1: the octets after the DDP-SSN, padded so that the chunk has whole words.
        body = stage("body", (((length + 1) >> 2) << 2) + 2, 16)
        total = stage("total", halves + crc[:16] + crc[16:], 32)
        # 2: lengths, and the lanes of the last beats.
        udp_length = stage("udp_length", body + FIXED + UDP_HEADER, 16)
        rows = stage("rows", ((body - 1) >> exact_log2(octets)) + 1, 12)
        last = stage("last", ((body - 1) & (octets - 1)) + 1, range(octets + 1))
        total = stage("total", total + path[1].udp_sum, 32)
        # 3
        inner = Mux(path[2].udp, udp_length, udp_length - UDP_HEADER)
        ip_length = stage("ip_length", inner + Mux(path[2].v6, 0, 20), 16)
        skipped = Signal(range(octets))
        m.d.comb += skipped.eq((path[2].first & (words - 1)) << 2)
        flush = stage("flush", skipped.any() & (last > skipped), 1)
        count = stage("count", Mux(
            ~skipped.any(), last,
            Mux(last > skipped, last - skipped, last + octets - skipped)), range(octets + 1))
        total = stage("total", total + (_turned(udp_length) << 1), 32)
        udp_length, rows = stage("udp_length", udp_length, 16), stage("rows", rows, 12)
        # 4
        ip_sum = stage("ip_sum", path[3].ip_sum + _turned(ip_length), 17)
        udp_sum = stage("udp_sum", folded(total), 17)
        # 5: a UDP checksum of 0 would say that there is none.
        udp = Signal(16)
        m.d.comb += udp.eq(~folded(udp_sum))
        m.d.sync += [
            self.o.valid.eq(_marked(m, 5, self.valid)),
            plan.chunk.eq(chunks.o),
            plan.crc.eq(delayed(m, 4, crc, "crc")),
            plan.chunk_length.eq(delayed(m, 4, length, "length") + DATA_HEADER + SSN),
            plan.ip_sum.eq(~folded(ip_sum)),
            plan.udp_sum.eq(Mux(udp.any(), udp, 0xFFFF)),
            plan.udp_length.eq(delayed(m, 1, udp_length, "udp_length")),
            plan.ip_length.eq(delayed(m, 1, ip_length, "ip_length")),
            plan.rows.eq(delayed(m, 1, rows, "rows")),
            plan.count.eq(delayed(m, 1, count, "count")),
            plan.flush.eq(delayed(m, 1, flush, "flush")),
        ]
        return m


class PacketPass(wiring.Component):
    """Outputs the rows of packets: first those of the headers' area, then those of the buffer.

    Latency: 4 cycles. Throughput: one row per cycle; a packet whose ``flush`` is set takes one
    cycle more. Reset: no packet is under way. Errors: none.

    Members
    -------
    word : In(stream.Signature(PathWord(associations), always_ready=True))
    plans : In(stream.Signature(_Plan(associations, octets)))
    body : In(stream.Signature(width))
    go : In(1)
        A row may be output in 4 cycles.
    begins : Out(1)
        The first row of a packet will be output.
    valid : Out(1), row : Out(width)
    lane : Out(range(words))
        The word of the first row with which the frame begins, one cycle before a row.
    emits, last : Out(1)
        The row completes a beat of the frame; the last one, of ``count`` (Out) octets.
    """

    LATENCY = 4

    def __init__(self, width, associations):
        self.width, self.associations = width, associations
        super().__init__({
            "word": In(stream.Signature(PathWord(associations), always_ready=True)),
            "plans": In(stream.Signature(_Plan(associations, width // 8))),
            "body": In(stream.Signature(width)),
            "go": In(1),
            "begins": Out(1),
            "valid": Out(1),
            "row": Out(width),
            "lane": Out(range(width // 32)),
            "emits": Out(1),
            "last": Out(1),
            "count": Out(range(width // 8 + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        octets, words = self.width // 8, self.width // 32
        rows = PATH_AREA // octets
        plan = self.plans.payload
        path = plan.chunk.path
        lane_bits = exact_log2(words)
        first_row, lane = path.first[lane_bits:], path.first[:lane_bits]

        # The row that leaves: of the area, of the buffer, or none for a flush.
        fresh, flushes, kept_row, left = Signal(init=1), Signal(), Signal(range(rows)), Signal(12)
        row, heads = Signal(range(rows)), Signal(init=1)
        of_area, of_body, ends, final = (Signal() for _ in range(4))
        m.d.comb += [
            row.eq(Mux(fresh, first_row, kept_row)),
            of_area.eq(self.plans.valid & self.go & heads),
            self.begins.eq(of_area & fresh),
            of_body.eq(self.body.valid & self.go & ~heads & ~flushes),
            self.body.ready.eq(self.go & ~heads & ~flushes),
            ends.eq(of_body & (left == 1)),
            final.eq((ends & ~plan.flush) | (flushes & self.go)),
            self.plans.ready.eq(final),
        ]
        with m.If(of_area):
            m.d.sync += [
                fresh.eq(0), kept_row.eq(row + 1), heads.eq(row != rows - 1), left.eq(plan.rows)]
        with m.If(of_body):
            m.d.sync += left.eq(left - 1)
        with m.If(ends):
            m.d.sync += flushes.eq(plan.flush)
        with m.If(final):
            m.d.sync += [fresh.eq(1), heads.eq(1), flushes.eq(0)]

        # The words of the headers come two cycles later; the fields replace some of their halves.
        columns = []
        for column in range(words):
            m.submodules[f"headers{column}"] = ram = BlockRam(
                32, self.associations * rows)
            word = self.word.payload
            m.d.comb += [
                ram.write.valid.eq(self.word.valid & (word.at[:lane_bits] == column)),
                ram.write.payload.address.eq(Cat(word.at[lane_bits:], word.association)),
                ram.write.payload.data.eq(word.word),
                ram.address[0].eq(Cat(row, plan.chunk.head.association)),
            ]
            columns.append(ram.data[0])
        fields, marks = self._fields(plan)
        field, marked = Signal(self.width, reset_less=True), Signal(octets // 2, reset_less=True)
        m.d.sync += [
            field.eq(Cat(fields).word_select(row, self.width)),
            marked.eq(Cat(marks).word_select(row, octets // 2) & of_area.replicate(octets // 2)),
        ]
        body = delayed(m, 2, self.body.payload, "body")
        from_body = delayed(m, 2, of_body, "from_body")
        field_2, marked_2 = delayed(m, 1, field, "field_2"), delayed(m, 1, marked, "marked_2")
        headers, merged = Cat(columns), Signal(self.width, reset_less=True)
        m.d.sync += merged.eq(Cat(
            Mux(marked_2[k], field_2.word_select(k, 16), Mux(
                from_body, body.word_select(k, 16), headers.word_select(k, 16)))
            for k in range(octets // 2)))
        takes = Signal()
        m.d.comb += takes.eq(of_area | of_body | (flushes & self.go))
        valid = Signal(self.LATENCY)
        m.d.sync += [valid.eq(Cat(takes, valid)), self.row.eq(merged)]
        m.d.comb += [
            self.valid.eq(valid[-1]),
            self.lane.eq(delayed(m, self.LATENCY - 1, lane, "lane")),
            self.emits.eq(delayed(m, self.LATENCY, takes & ~(fresh & lane.any()), "emits")),
            self.last.eq(delayed(m, self.LATENCY, final, "final")),
            self.count.eq(delayed(m, self.LATENCY, Mux(final, plan.count, octets), "count")),
        ]
        return m

    def _fields(self, plan):
        """Returns the halves of the area that are not in the path's words, and where they are."""
        path = plan.chunk.path
        # Each half: the value if it is marked, and the mark.
        halves = [(C(0, 16), C(0, 1)) for _ in range(HALVES)]
        for at, half in enumerate(_halves(plan.chunk, plan.crc, plan.chunk_length)):
            halves[PACKET + at] = half, C(1, 1)

        def put(octet, value, mark):
            other, marked = halves[octet // 2]
            halves[octet // 2] = Mux(mark, value, other), marked | mark

        udp = PATH_HEADERS - UDP_HEADER
        put(udp + 4, _turned(plan.udp_length), path.udp)
        put(udp + 6, plan.udp_sum, path.udp)
        for end, has_udp in ((udp, path.udp), (PATH_HEADERS, ~path.udp)):
            put(end - 20 + 2, _turned(plan.ip_length), has_udp & ~path.v6)
            put(end - 20 + 10, plan.ip_sum, has_udp & ~path.v6)
            put(end - 40 + 4, _turned(plan.ip_length), has_udp & path.v6)
        return [value[:16] for value, _ in halves], [mark for _, mark in halves]


class Realign(wiring.Component):
    """Moves each frame to its first lane.

    Latency: ``latency`` cycles. Throughput: one row per cycle. Reset: none. Errors: none.

    Members
    -------
    lane : In(range(words))
        The word with which the frame begins in its first row, one cycle before a row.
    i : In(width)
        A row; the row before it in the last valid cycle.
    valid : In(1)
    o : Out(width)
    """

    def __init__(self, width):
        self.width = width
        self._rotate = Rotate(width // 32, 4)
        super().__init__({
            "lane": In(range(width // 32)), "i": In(width), "valid": In(1), "o": Out(width)})

    @property
    def latency(self):
        """Cycles from a row to the beat with its words."""
        return self._rotate.stages + 1

    def elaborate(self, platform):
        m = Module()
        words = self.width // 32
        m.submodules.rotate = rotate = self._rotate
        amount = Signal(range(words))
        m.d.comb += [amount.eq(-self.lane), rotate.amount.eq(amount), rotate.i.eq(self.i)]
        stages = rotate.stages
        # These words are of the row itself; those before them of the row before it.
        own = Signal(words, reset_less=True)
        low = delayed(m, stages, amount, "amount")
        m.d.sync += own.eq(Cat(k >= low for k in range(words)))
        kept = Signal(self.width, reset_less=True)
        with m.If(delayed(m, stages, self.valid, "valid")):
            m.d.sync += kept.eq(rotate.o)
        m.d.sync += self.o.eq(Cat(
            Mux(own[k], rotate.o.word_select(k, 32), kept.word_select(k, 32))
            for k in range(words)))
        return m


class ChunkFramer(wiring.Component):
    """Makes a frame of each chunk's octets: the path's headers, and an SCTP packet with one DATA
    chunk.

    Latency: some 30 cycles from a chunk's last beat to its frame's first one. Throughput: a frame
    takes as many cycles as it has beats, and one more if it does not begin at the first lane of a
    row: over IPv4 without VLAN and UDP it does at every width. Reset: empty; paths and TSNs stay.
    Errors: none.

    Parameters
    ----------
    width : int
        Bits in a beat: 64, 128, 256 or 512.
    associations : int

    Members
    -------
    set, word
        As in :class:`TsnTurn` and :class:`PacketPass`.
    heads : In(stream.Signature(ChunkHead(associations)))
        One for each packet of ``i``, in the same order.
    i : In(stream.Signature(Beat(width)))
    o : Out(stream.Signature(SentBeat(width)))
        A frame without FCS; ``sequence`` is its TSN.
    """

    def __init__(self, width, associations):
        self.width, self.associations = width, associations
        super().__init__({
            "set": In(stream.Signature(PathSetting(associations))),
            "word": In(stream.Signature(PathWord(associations), always_ready=True)),
            "heads": In(stream.Signature(ChunkHead(associations))),
            "i": In(stream.Signature(Beat(width))),
            "o": Out(stream.Signature(SentBeat(width))),
        })

    def elaborate(self, platform):
        m = Module()
        width, associations = self.width, self.associations
        m.submodules.turn = turn = TsnTurn(associations)
        m.submodules.check = check = CheckPass(width, associations)
        m.submodules.crc = crc = Crc32c(width, granule=2)
        m.submodules.sum = total = HalvesSum(width)
        m.submodules.passed = passed = Store(_Numbered(associations), depth=QUEUE)
        m.submodules.crcs = crcs = Store(32, depth=QUEUE)
        m.submodules.sums = sums = Store(32, depth=QUEUE)
        m.submodules.buffer = buffer = Backlog(width, depth=PACKET_OCTETS * 8 // width)
        m.submodules.plan = plan = PacketPlans(width, associations)
        m.submodules.plans = plans = Store(_Plan(associations, width // 8), depth=16)
        m.submodules.output = output = PacketPass(width, associations)
        m.submodules.realign = realign = Realign(width)
        wiring.connect(m, wiring.flipped(self.set), turn.set)
        wiring.connect(m, wiring.flipped(self.word), output.word)
        wiring.connect(m, wiring.flipped(self.heads), turn.i)
        wiring.connect(m, wiring.flipped(self.i), check.i)
        wiring.connect(m, turn.o, check.chunks)
        wiring.connect(m, check.check, crc.i)
        wiring.connect(m, check.body, buffer.i)
        wiring.connect(m, check.o, passed.i)
        wiring.connect(m, total.o, sums.i)
        wiring.connect(m, plan.o, plans.i)
        wiring.connect(m, plans.o, output.plans)
        wiring.connect(m, buffer.o, output.body)
        summed = Signal()
        m.d.comb += [
            total.valid.eq(check.check.valid),
            total.last.eq(check.check.payload.close),
            total.i.eq(check.check.payload.data),
            crcs.i.valid.eq(crc.o.valid),
            crcs.i.payload.eq(crc.o.payload.crc),
            summed.eq(passed.o.valid & crcs.o.valid & sums.o.valid & plans.half),
            *(store.o.ready.eq(summed) for store in (passed, crcs, sums)),
            plan.valid.eq(summed),
            plan.chunk.eq(passed.o.payload),
            plan.crc.eq(crcs.o.payload),
            plan.sum.eq(sums.o.payload),
        ]
        # The buffer has room for a packet and for the beats that are on their way to it.
        m.d.sync += check.go.eq(
            passed.half & crcs.half & (buffer.level < PACKET_OCTETS * 8 // width - 8))

        m.submodules.queue = queue = Store(Beat(width), depth=QUEUE)
        known = data.StructLayout({"stream": 16, "sequence": 32, "record": SentRecord()})
        m.submodules.known = of_packet = Store(known, depth=QUEUE)
        m.submodules.stage = stage = Stage(SentBeat(width))
        wiring.connect(m, stage.o, wiring.flipped(self.o))
        chunk = plans.o.payload.chunk
        m.d.sync += output.go.eq(queue.half & of_packet.half)
        out, latency = stage.i.payload, realign.latency
        m.d.comb += [
            realign.lane.eq(output.lane),
            realign.i.eq(output.row),
            realign.valid.eq(output.valid),
            queue.i.valid.eq(_marked(m, latency, output.valid & output.emits)),
            queue.i.payload.data.eq(realign.o),
            queue.i.payload.last.eq(delayed(m, latency, output.last, "last")),
            queue.i.payload.count.eq(delayed(m, latency, output.count, "count")),
            of_packet.i.valid.eq(output.begins),
            of_packet.i.payload.stream.eq(chunk.head.stream),
            of_packet.i.payload.sequence.eq(chunk.tsn),
            of_packet.i.payload.record.eq(chunk.head.record),
            stage.i.valid.eq(queue.o.valid & of_packet.o.valid),
            queue.o.ready.eq(stage.i.ready & of_packet.o.valid),
            out.beat.eq(queue.o.payload),
            *(out[name].eq(of_packet.o.payload[name]) for name in known.members),
            of_packet.o.ready.eq(
                queue.o.valid & queue.o.ready & queue.o.payload.last),
        ]
        return m
