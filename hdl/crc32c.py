"""CRC32C (RFC 3720 §12.1, appendix B.4) at one beat a cycle, with packets that end and begin anywhere."""

from functools import reduce
from operator import xor

from amaranth import *
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from .stream import Beat

__all__ = ["Crc32c", "Crc32cStream", "Slice", "Checksum"]


# Linear algebra over GF(2). A vector is an integer, a matrix the list of its columns, the images of bits 0, 1, ...

_REFLECTED = 0x82F63B78  # the polynomial 0x11EDC6F41 less its first term, lowest power in the highest bit
_PRESET = 0xFFFFFFFF  # before the first octet, and added to the last state


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
    # Columns are reduced, each one carrying the combination of columns that it has become.
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


def _rows(matrix, size=32):
    return [sum((column >> row & 1) << bit for bit, column in enumerate(matrix)) for row in range(size)]


def _octet_step():
    """The matrix that takes the state over one octet of zeros."""
    step = [_REFLECTED] + [1 << bit - 1 for bit in range(1, 32)]
    return _power(step, 8)


def _product(matrix, vector):
    """``matrix`` times a value of the design: one exclusive-or of masked bits a row."""
    return Cat((vector & row).xor() for row in _rows(matrix))


class Slice(data.StructLayout):
    """A beat as the checksum sees it: at most one packet boundary.

    A beat with several boundaries is visited in several successive slices. Granules are counted from
    the lowest of the beat; there are ``K = width // (8 * granule)``.

    Members
    -------
    data : unsigned(width)
        Octets, the first one lowest.
    lo : range(K)
        First granule that belongs to the current packet: 0 unless the beat is visited again.
    first : 1
        The current packet begins at ``lo`` in this visit, whatever was open before.
    cut : range(K + 1)
        The boundary, where ``close`` or ``open`` say that there is one.
    close : 1
        The current packet ends before granule ``cut``, and its checksum is given out.
    open : 1
        A packet begins at granule ``cut`` and takes all up to ``end``.
    tail : 1
        With ``open``: that packet ends with the data of this beat, and its checksum is given out too.
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


class Crc32c(wiring.Component):
    """CRC32C of packets that lie back to back in a stream of beats.

    Packets begin and end at any granule. A packet is what ``first`` or ``open`` begins, all granules of the
    slices that follow, up to ``close`` or ``tail``; one of no granules is sound. Results come in the
    order of packets. A slice after one with ``tail`` must not have ``close``, as the result of the tail
    takes its turn.

    Latency: ``latency`` cycles from a slice with ``close`` to its result, one more for ``tail``.
    Throughput: 1 slice a cycle, always taken. Reset: nothing is open and no result is under way. Errors: none.

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
        super().__init__({
            "i": In(stream.Signature(self.shape, always_ready=True)),
            "o": Out(stream.Signature(Checksum(), always_ready=True)),
        })

    @property
    def latency(self):
        """Cycles from a slice with ``close`` to its result."""
        return 4 + len(self._tree_sizes()) + self.shape.granules.bit_length()

    def _tree_sizes(self):
        """Terms of each region after each registered step of the sum; 3 fit the step that ends it."""
        # A gate takes two granules to a table of four inputs; two levels of tables make a step.
        units = self.shape.granules
        sizes = [-(-units // (2 if self.granule == 1 else 8))]
        while sizes[-1] > 3:
            sizes.append(-(-sizes[-1] // 16))
        return sizes

    def elaborate(self, platform):
        m = Module()
        granules = self.shape.granules
        octet = _octet_step()
        beat = _power(octet, self.width // 8)

        # The one loop of this block takes the state over a beat. In the basis v, Bv, B²v ... that matrix B is
        # its companion: bit n becomes bit n-1, plus the last bit in some places. So the loop is one table
        # deep whatever the width. All that is added to the state is written in that basis at no
        # cost, as it comes from constant matrices anyway; what leaves it is brought back outside the loop.
        basis = [1]
        for _ in range(31):
            basis.append(_apply(beat, basis[-1]))
        into = _inverse(basis)
        companion = _multiply(into, _multiply(beat, basis))

        def weight(at):
            """The matrix of what an octet at ``at`` adds to the state at the end of the beat."""
            return _multiply(into, _power(octet, self.width // 8 - at))

        presets = [_apply(weight(self.granule * at), _PRESET) for at in range(granules + 1)]

        def preset(index):
            return Cat(
                Const(sum((value >> bit & 1) << at for at, value in enumerate(presets)), granules + 1)
                .bit_select(index, 1) for bit in range(32)
            )

        def later(signal, name):
            """``signal`` one cycle later; a dictionary or list item by item."""
            if isinstance(signal, dict):
                return {key: later(value, key) for key, value in signal.items()}
            if isinstance(signal, list):
                return [later(value, name) for value in signal]
            copy = Signal(Value.cast(signal).shape(), name=name, reset_less=name not in ("close", "tail", "valid"))
            m.d.sync += copy.eq(signal)
            return copy

        # Step 1: the slice, and which granules lie before each of its three marks.
        word = self.i.payload
        # A packet that ends before granule 0 ended with the beat before: its sum is the state itself, or
        # the preset alone. This leaves 0 .. K-1 granules to take back, one step less.
        none = word.close & (word.cut == 0)
        flow = later({
            "valid": self.i.valid,
            "close": self.i.valid & word.close,
            "tail": self.i.valid & word.tail,
            "close_here": word.close,
            "first": word.first,
            "open": word.open,
            "held": none & ~word.first,
            "close_back": (-word.cut)[:exact_log2(granules)],
            "tail_back": (-word.end)[:exact_log2(granules)],
        }, "flow")
        octets = later(word.data, "octets")
        before = {
            mark: later(Cat(at < word[mark] for at in range(granules)), f"before_{mark}") for mark in ("lo", "cut", "end")
        }
        index = later(Mux(none, granules, word.lo), "index")
        open_index = later(Mux(word.tail & (word.end == 0), granules, word.cut), "open_index")

        # Step 2: the masks of the two regions, and what each granule would add.
        close_here = flow.pop("close_here")
        masks = [
            later(~before["lo"] & Mux(close_here, before["cut"], before["end"]), "mask"),
            later(~before["cut"] & before["end"], "open_mask"),
        ]
        size = 8 * self.granule
        units = [octets[at * size:(at + 1) * size] for at in range(granules)]
        matrices = [
            [column for at in range(self.granule) for column in weight(unit * self.granule + at)[:8]]
            for unit in range(granules)
        ]
        if self.granule == 1:
            units = [_product(matrix, unit) for matrix, unit in zip(matrices, later(units, "unit"), strict=True)]
        else:
            units = [later(_product(matrix, unit), "unit") for matrix, unit in zip(matrices, units, strict=True)]
        starts = [later(preset(index) & flow["first"].replicate(32), "start"), later(preset(open_index), "open_start")]
        flow = later(flow, "flow")

        # Step 3 and on: the sum of each region.
        regions = [[unit & mask[at].replicate(32) for at, unit in enumerate(units)] for mask in masks]
        for count in self._tree_sizes():
            fan = -(-len(regions[0]) // count)
            regions = [
                [later(reduce(xor, terms[at:at + fan]), "term") for at in range(0, len(terms), fan)] for terms in regions
            ]
            starts = later(starts, "start")
            flow = later(flow, "flow")

        # What this slice adds to the packet that may end in it, and to the state that goes on.
        ending, opening = (reduce(xor, [*terms, start]) for terms, start in zip(regions, starts, strict=True))
        added = later(ending, "added")
        onward = later(Mux(flow["open"], opening, ending), "onward")
        restart = later(flow["first"] | flow["open"], "restart")
        flow = later(flow, "flow")

        # The state, and the sum of a packet that ends: in this slice, or as the tail of the one before.
        state = Signal(32, reset_less=True)
        stepped = _product(companion, state)
        with m.If(flow["valid"]):
            m.d.sync += state.eq((stepped & ~restart.replicate(32)) ^ onward)
        tail = later(flow["tail"], "tail")
        tail_back = later(flow["tail_back"], "tail_back")
        total = later(
            Mux(tail | flow["held"], state, (stepped & ~flow["first"].replicate(32)) ^ added), "total",
        )
        valid = later(flow["close"] | tail, "valid")
        back = later(Mux(tail, tail_back, flow["close_back"]), "back")

        # Back from the basis, and back over the granules of the beat that follow the packet.
        total = later(_product(basis, total), "total")
        valid, back = later(valid, "valid"), later(back, "back")
        for bit in reversed(range(exact_log2(granules))):
            undo = _inverse(_power(octet, self.granule << bit))
            # x + (M + 1)x where the bit is set
            change = [column ^ 1 << at for at, column in enumerate(undo)]
            total = later(total ^ (_product(change, total) & back[bit].replicate(32)), "total")
            valid, back = later(valid, "valid"), later(back, "back")

        m.d.comb += [self.o.valid.eq(valid), self.o.payload.crc.eq(~total)]
        return m


class Crc32cStream(wiring.Component):
    """CRC32C of each packet of a stream, to the octet.

    Latency: ``latency`` cycles from the last beat. Throughput: 1 beat a cycle, always taken. Reset: the next
    beat begins a packet. Errors: none; the error mark of a packet is not looked at.

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
