"""Computes CRC32C (RFC 3720 §12.1, appendix B.4) at one beat per cycle, for packets of any length.
"""

from functools import reduce
from itertools import chain
from operator import xor

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .stream import Beat

__all__ = ["Crc32c", "Crc32cStream", "Slice", "Checksum", "differences"]


# Linear algebra over GF(2). A vector is an integer; a matrix is the list of its columns, which are
# the images of bits 0, 1, ...

_REFLECTED = 0x82F63B78  # the polynomial 0x11EDC6F41 without its first term, lowest power highest
_PRESET = 0xFFFFFFFF  # the state before the first octet; also added to the last state


def _apply(matrix, vector):
    return reduce(xor, (column for bit, column in enumerate(matrix) if vector >> bit & 1), 0)


def _multiply(left, right):
    return [_apply(left, column) for column in right]


def _power(matrix, exponent):
    result = [1 << bit for bit in range(len(matrix))]
    while exponent:
        if exponent & 1:
            result = _multiply(matrix, result)
        matrix = _multiply(matrix, matrix)
        exponent >>= 1
    return result


def _inverse(matrix):
    size = len(matrix)
    # Columns are reduced; each carries the combination of original columns that it consists of.
    pairs = [(column, 1 << bit) for bit, column in enumerate(matrix)]
    for bit in range(size):
        pivot = next((at for at in range(bit, size) if pairs[at][0] >> bit & 1), None)
        if pivot is None:
            raise ValueError("matrix is singular")
        pairs[bit], pairs[pivot] = pairs[pivot], pairs[bit]
        column, origin = pairs[bit]
        pairs = [
            (other ^ column, made ^ origin) if at != bit and other >> bit & 1 else (other, made)
            for at, (other, made) in enumerate(pairs)
        ]
    return [origin for _, origin in pairs]


def _added(terms, fan):
    """Returns the sums of each ``fan`` successive terms."""
    return [reduce(xor, terms[at:at + fan]) for at in range(0, len(terms), fan)]


def _product(matrix, vector):
    """Returns gates for ``matrix`` times a signal: the XOR of the columns that its bits select."""
    terms = [
        Mux(bit, Const(column, 32), Const(0, 32))
        for bit, column in zip(vector, matrix, strict=True)
    ]
    while len(terms) > 1:
        terms = _added(terms, 2)
    return terms[0]


class Slice(data.StructLayout):
    """A beat as the checksum takes it, with at most one packet boundary.

    A beat with several boundaries is given as several successive slices. Granules are counted from
    the lowest of the beat; there are ``K = width // (8 * granule)``.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest.
    lo : range(K)
        First granule that belongs to the current packet: 0 unless the beat is given again.
    first : 1
        The current packet begins at ``lo`` of this slice, whatever was open before.
    cut : range(K + 1)
        The boundary, if ``close`` or ``open`` is set.
    close : 1
        The current packet ends before granule ``cut``, and its checksum is output.
    open : 1
        A packet begins at granule ``cut`` and takes all granules up to ``end``.
    tail : 1
        With ``open``: that packet ends with the data of this beat; its checksum is output too.
    end : range(K + 1)
        Granules that hold data.
    """

    def __init__(self, width, granule):
        if width not in (64, 128, 256, 512):
            raise ValueError(f"Slice width must be one of 64, 128, 256, 512, not {width!r}")
        if granule not in (1, 2, 4):
            raise ValueError(f"Slice granule must be one of 1, 2, 4 octets, not {granule!r}")
        self.width = width
        self.granule = granule
        self.granules = width // (8 * granule)
        super().__init__({
            "data": width,
            "lo": range(self.granules),
            "first": 1,
            "cut": range(self.granules + 1),
            "close": 1,
            "open": 1,
            "tail": 1,
            "end": range(self.granules + 1),
        })


class Checksum(data.StructLayout):
    """The CRC32C of one packet, as it goes into a packet lowest octet first.

    Members
    -------
    crc : 32
    """

    def __init__(self):
        super().__init__({"crc": 32})


class _Matrices:
    """Computes the constant matrices for slices of a shape, in the two bases of the state.

    Let H be the matrix that advances the state over a quarter of a beat of zeros, or over one
    granule where that is more. In the basis v, Hv, H²v ... H is its companion matrix, a shift with
    one feedback, and H to the power of n, or of -n, has at most n + 1 terms per row. So in this
    inner basis the loop over a whole beat is two tables deep at any width, and so is half of the
    way back. Terms that are added to the state are written in this basis at no cost, because they
    come from constant matrices anyway; results are converted to the ordinary basis outside of the
    loop.
    """

    def __init__(self, shape):
        self._shape = shape
        self._octets = shape.width // 8
        self.octet = _power([_REFLECTED, *(1 << bit for bit in range(31))], 8)
        self._stride = max(shape.granules // 4, 1)
        step = _power(self.octet, self._stride * shape.granule)
        self.basis = [1]
        for _ in range(31):
            self.basis.append(_apply(step, self.basis[-1]))
        self._inside = _inverse(self.basis)
        self.beat = self._inner(_power(self.octet, self._octets))
        # The preset's contribution at the end of the beat, by the granule where a packet begins.
        starts = range(0, self._octets + 1, shape.granule)
        self.presets = [_apply(self._weight(at), _PRESET) for at in starts]

    def _inner(self, matrix):
        return _multiply(self._inside, _multiply(matrix, self.basis))

    def _weight(self, at):
        return _multiply(self._inside, _power(self.octet, self._octets - at))

    def weight(self, at, count):
        """Returns the contribution of ``count`` octets from octet ``at`` on, at the beat's end."""
        return [column for octet in range(at, at + count) for column in self._weight(octet)[:8]]

    def back(self):
        """Returns the steps back over zeros in either basis, as (bit of the granules, matrix)."""
        inner, outer = [], []
        for bit in reversed(range(exact_log2(self._shape.granules))):
            matrix = _inverse(_power(self.octet, self._shape.granule << bit))
            if 1 << bit >= self._stride:
                inner.append((bit, self._inner(matrix)))
            else:
                outer.append((bit, matrix))
        return inner, outer


    def rewind(self):
        """Returns the matrices of each stage of :class:`_Rewind`, as (bit of ``back`` or None for
        always, matrix).
        """
        inner, outer = self.back()
        # The two steps with the fewest terms fit together between two registers.
        pair = [inner[-2:]] if len(inner) > 1 else [inner]
        single = [[step] for step in inner[:-2]]
        return [*single, *pair, [(None, self.basis)], *([step] for step in outer)]


def differences(width, granule):
    """Returns how the last four octets of a packet must be changed to change one bit alone of a
    register of :class:`Crc32c` between the sums and the result: a sorted list of 32-bit numbers
    whose lowest octet comes first.

    Packets that end in their own CRC all have the same result. So a fault in one of those bits
    shows only where a packet is spoiled like this.
    """
    shape = Slice(width, granule)
    matrices = _Matrices(shape)
    before = _inverse(_power(matrices.octet, 4))
    stages = matrices.rewind()
    found = set()
    for granules in range(shape.granules):
        for stage in range(len(stages) + 1):
            for bit in range(32):
                change = 1 << bit
                for distance, matrix in chain(*stages[stage:]):
                    if distance is None or granules >> distance & 1:
                        change = _apply(matrix, change)
                found.add(_apply(before, change))
    return sorted(found)


class _Term(data.StructLayout):
    """The change of the state by one slice.

    Members
    -------
    valid, first, close, tail : 1
        As in the slice.
    restart : 1
        The state restarts: a packet begins.
    held : 1
        The packet that ends has no granule in this beat: its sum is the state unchanged.
    close_back, tail_back : range(K)
        Granules to step back from the end of the beat, for a packet that ends by either.
    added : 32
        Contribution of the current packet.
    onward : 32
        Value that is added to the state for the next slice.
    """

    def __init__(self, granules):
        super().__init__({
            "valid": 1,
            "first": 1,
            "close": 1,
            "tail": 1,
            "restart": 1,
            "held": 1,
            "close_back": range(granules),
            "tail_back": range(granules),
            "added": 32,
            "onward": 32,
        })


class _Fold(wiring.Component):
    """Sums up the two regions of a slice: the feed-forward part of :class:`Crc32c`.

    Latency: ``latency`` cycles. Throughput: one slice per cycle.
    Reset: nothing valid is under way. Errors: none.

    Members
    -------
    i_valid : In(1), i : In(Slice)
    o : Out(_Term)
    """

    def __init__(self, shape, matrices):
        self.shape = shape
        self._matrices = matrices
        super().__init__({"i_valid": In(1), "i": In(shape), "o": Out(_Term(shape.granules))})

    @property
    def latency(self):
        return 3 + len(self._sizes())

    def _sizes(self):
        """Returns how many terms a sum has after each registered step, two tables deep."""
        # A table gates a granule of two parts or two granules of one part; the next one adds four.
        sizes = [-(-self.shape.granules // (4 if self.shape.granule == 4 else 8))]
        while sizes[-1] > 4:
            sizes.append(-(-sizes[-1] // 16))
        return sizes

    def _preset(self, index):
        """Returns the preset for a packet that begins at granule ``index``."""
        presets = self._matrices.presets
        # A part-select of a constant instead of an array, which tools would take for a memory.
        table = sum(preset << 32 * at for at, preset in enumerate(presets))
        return Const(table, 32 * len(presets)).word_select(index, 32)

    def elaborate(self, platform):
        m = Module()
        granules = self.shape.granules
        bits = exact_log2(granules)

        def later(value, name):
            signal = Signal(value.shape(), name=name, reset_less=True)
            m.d.sync += signal.eq(value)
            return signal

        # Step 1: the slice, and which granules lie before each of its marks.
        word = later(self.i, "word")
        valid = Signal()
        m.d.sync += valid.eq(self.i_valid)
        before_lo, before_cut, before_end = (
            later(Cat(at < self.i[mark] for at in range(granules)), f"before_{mark}")
            for mark in ("lo", "cut", "end")
        )

        # Step 2: the mask of each region, and the contribution of each part of the data. A packet
        # that ends before granule 0 ended with the beat before: its sum is the state, or the preset
        # alone. So at most K - 1 granules have to be taken back, which is one step less.
        region = ~before_lo & Mux(word.close, before_cut, before_end)
        onward = Mux(word.open, ~before_cut & before_end, region)
        masks = [later(region, "mask"), later(onward, "onward_mask")]
        part = min(self.shape.granule, 2)
        weights = [self._matrices.weight(at, part) for at in range(0, self.shape.width // 8, part)]
        parts = [
            later(_product(weight, word.data.word_select(at, 8 * part)), "part")
            for at, weight in enumerate(weights)
        ]
        none = word.close & ~before_cut[0]
        nothing, opening = later(none, "nothing"), later(word.open, "opening")
        empty = later(word.tail & ~before_end[0], "empty")
        begin = later(self._preset(word.lo), "begin")
        opened = later(self._preset(word.cut), "opened")
        flow = Signal(_Term(granules))
        m.d.sync += [
            flow.valid.eq(valid),
            flow.first.eq(word.first),
            flow.close.eq(valid & word.close),
            flow.tail.eq(valid & word.tail),
            flow.restart.eq(word.first | word.open),
            flow.held.eq(none & ~word.first),
            flow.close_back.eq((-word.cut)[:bits]),
            flow.tail_back.eq((-word.end)[:bits]),
        ]

        # Step 3 and on: the sums, and the presets beside them.
        units = _added(parts, self.shape.granule // part)
        sums = [[unit & mask[at].replicate(32) for at, unit in enumerate(units)] for mask in masks]
        bare = self._matrices.presets[-1]
        start = Mux(nothing, bare, begin) & flow.first.replicate(32)
        starts = [start, Mux(opening, Mux(empty, bare, opened), start)]
        for size in self._sizes():
            fan = -(-len(sums[0]) // size)
            sums = [[later(term, "term") for term in _added(terms, fan)] for terms in sums]
            starts = [later(start, "start") for start in starts]
            flow, earlier = Signal(_Term(granules)), flow
            m.d.sync += flow.eq(earlier)
        added, onward = (
            reduce(xor, terms, start) for terms, start in zip(sums, starts, strict=True)
        )
        m.d.sync += [self.o.eq(flow), self.o.added.eq(added), self.o.onward.eq(onward)]
        return m


class _Rewind(wiring.Component):
    """Converts a state to the ordinary basis, and steps it back over granules after the packet.

    Latency: ``latency`` cycles. Throughput: one state per cycle. Reset: nothing is under way.
    Errors: none.

    Members
    -------
    valid : In(1)
    state : In(32)
    back : In(range(K))
        Granules to step back over.
    o : Out(stream.Signature(Checksum(), always_ready=True))
    """

    def __init__(self, shape, matrices):
        self.shape = shape
        self._matrices = matrices
        super().__init__({
            "valid": In(1),
            "state": In(32),
            "back": In(range(shape.granules)),
            "o": Out(stream.Signature(Checksum(), always_ready=True)),
        })

    @property
    def latency(self):
        return len(self._matrices.rewind())

    def elaborate(self, platform):
        m = Module()
        valid, state, back = self.valid, self.state, self.back
        for steps in self._matrices.rewind():
            for bit, matrix in steps:
                if bit is None:
                    state = _product(matrix, state)
                else:
                    # x + (M + 1)x where the bit of the distance is set
                    change = [column ^ 1 << at for at, column in enumerate(matrix)]
                    state = state ^ (_product(change, state) & back[bit].replicate(32))
            registers = Signal(), Signal(32, reset_less=True), Signal.like(back, reset_less=True)
            m.d.sync += registers[0].eq(valid)
            with m.If(valid):
                m.d.sync += [registers[1].eq(state), registers[2].eq(back)]
            valid, state, back = registers
        m.d.comb += [self.o.valid.eq(valid), self.o.payload.crc.eq(~state)]
        return m


class Crc32c(wiring.Component):
    """Computes the CRC32C of packets that lie back to back in a stream of beats.

    Packets begin and end at any granule. A packet consists of the granules from ``first`` or
    ``open`` on, through all following slices, up to ``close`` or ``tail``; it may have no granules.
    Results come in the order of packets. A slice after one with ``tail`` must not have ``close``,
    because the result of the tail leaves in its place.

    Latency: ``latency`` cycles from a slice with ``close`` to its result, one more for ``tail``.
    Throughput: one slice per cycle, always taken.
    Reset: no packet is open and no result is under way.
    Errors: none.

    Parameters
    ----------
    width : int
        Bits in a beat: 64, 128, 256 or 512.
    granule : int
        Octets in a granule, the unit of packet boundaries: 1, 2 or 4.

    Members
    -------
    i : In(stream.Signature(Slice(width, granule), always_ready=True))
    o : Out(stream.Signature(Checksum(), always_ready=True))
    """

    def __init__(self, width, *, granule=4):
        self.shape = Slice(width, granule)
        self.width = width
        self.granule = granule
        self._matrices = _Matrices(self.shape)
        self._fold = _Fold(self.shape, self._matrices)
        self._rewind = _Rewind(self.shape, self._matrices)
        super().__init__({
            "i": In(stream.Signature(self.shape, always_ready=True)),
            "o": Out(stream.Signature(Checksum(), always_ready=True)),
        })

    @property
    def latency(self):
        """Cycles from a slice with ``close`` to its result."""
        return self._fold.latency + 1 + self._rewind.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.fold = fold = self._fold
        m.submodules.rewind = rewind = self._rewind
        term = fold.o
        state = Signal(32, reset_less=True)
        stepped = Signal(32)
        tail = Signal()
        tail_back = Signal.like(term.tail_back, reset_less=True)
        total = Signal(32, reset_less=True)
        back = Signal.like(rewind.back, reset_less=True)
        valid = Signal()

        m.d.comb += [
            fold.i_valid.eq(self.i.valid),
            fold.i.eq(self.i.payload),
            stepped.eq(_product(self._matrices.beat, state)),
        ]
        with m.If(term.valid):
            m.d.sync += state.eq((stepped & ~term.restart.replicate(32)) ^ term.onward)
        # A tail's sum is the new state, so it leaves one slot later. That slot is free: no packet
        # was open that could close in it.
        m.d.sync += [
            tail.eq(term.tail),
            tail_back.eq(term.tail_back),
            valid.eq(term.close | tail),
            back.eq(Mux(tail, tail_back, term.close_back)),
        ]
        with m.If(tail | term.held):
            m.d.sync += total.eq(state)
        with m.Else():
            m.d.sync += total.eq((stepped & ~term.first.replicate(32)) ^ term.added)
        m.d.comb += [rewind.valid.eq(valid), rewind.state.eq(total), rewind.back.eq(back)]
        wiring.connect(m, rewind.o, wiring.flipped(self.o))
        return m


class Crc32cStream(wiring.Component):
    """Computes the CRC32C of each packet of a stream, to the octet.

    Latency: ``latency`` cycles from the last beat. Throughput: one beat per cycle, always taken.
    Reset: the next beat begins a packet. Errors: none; a packet's error mark is ignored.

    Parameters
    ----------
    width : int
        Bits in a beat: 64, 128, 256 or 512.

    Members
    -------
    i : In(stream.Signature(Beat(width), always_ready=True))
    o : Out(stream.Signature(Checksum(), always_ready=True))
    """

    def __init__(self, width):
        self._crc = Crc32c(width, granule=1)
        self.width = width
        super().__init__({
            "i": In(stream.Signature(Beat(width), always_ready=True)),
            "o": Out(stream.Signature(Checksum(), always_ready=True)),
        })

    @property
    def latency(self):
        """Cycles from the last beat of a packet to its result."""
        return self._crc.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = self._crc
        first = Signal(init=1)
        m.d.comb += [
            crc.i.valid.eq(self.i.valid),
            crc.i.payload.data.eq(self.i.payload.data),
            crc.i.payload.first.eq(first),
            crc.i.payload.cut.eq(self.i.payload.count),
            crc.i.payload.close.eq(self.i.payload.last),
            crc.i.payload.end.eq(self.i.payload.count),
        ]
        with m.If(self.i.valid):
            m.d.sync += first.eq(self.i.payload.last)
        wiring.connect(m, crc.o, wiring.flipped(self.o))
        return m
