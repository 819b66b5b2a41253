"""Which items of a DDP stream are new: its window of DDP-SSNs (RFC 5043 sections 5.2.1 and 10)."""

from amaranth import *
from amaranth.lib import data, enum, memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.config import power_of_two
from ..stream import counted, nibbles

__all__ = ["Advance", "Arrival", "Judged", "Released", "SESSION_BITS", "Ticket", "Verdict",
           "Window", "place_of", "session_after", "storage_of"]

#: Bits of the number that tells a stream's sessions apart. What a session leaves behind is swept
#: up long before its number comes again, see :class:`~.order.Reorder`.
SESSION_BITS = 4


class Verdict(enum.Enum, shape=3):
    """What becomes of an item; the numbers are those of :class:`...spec.completion.ChunkStatus`."""

    #: It is new, and taken.
    FRESH = 0
    #: It came before. No error: a retransmission.
    DUPLICATE = 1
    #: It is ahead of the window, or there is no place to let it wait: dropped. It must come again.
    OUTSIDE = 2
    #: It fits no legal sequence: its stream is aborted.
    ILLEGAL = 3
    #: Its stream is aborted, and it is dropped.
    SILENT = 4
    #: Not of :class:`Window`: ILLEGAL, unless it came before.
    REFUSED = 5


class Arrival(data.StructLayout):
    """An item as its session sees it.

    Members
    -------
    verdict : Verdict
        FRESH: it may be taken. FRESH and REFUSED are for the window to decide.
    stream : range(streams)
    session : 4
        Number of the stream's session.
    ssn : 16
    first : 1
        The first item of a session, with DDP-SSN 0. It is taken, whatever came before.
    final : 1
        Nothing may follow it in its session.
    """

    def __init__(self, streams):
        super().__init__({
            "verdict": Verdict, "stream": range(streams), "session": SESSION_BITS, "ssn": 16,
            "first": 1, "final": 1,
        })


class Ticket(data.StructLayout):
    """What an item that was taken keeps until it is delivered.

    Members
    -------
    stream, session, ssn, first, final
        As in :class:`Arrival`.
    express : 1
        It has no place to wait, and needs none: it is the next one of its stream.
    parity : 1
        Changes each time its place is taken, or its stream has an express item.
    """

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "session": SESSION_BITS, "ssn": 16, "first": 1, "final": 1,
            "parity": 1, "express": 1,
        })


class Judged(data.StructLayout):
    """An item's ``verdict`` (Verdict), and its ``ticket`` (Ticket)."""

    def __init__(self, streams):
        super().__init__({"verdict": Verdict, "ticket": Ticket(streams)})


class Advance(data.StructLayout):
    """The ``next`` (16) DDP-SSN of a ``stream`` in ``session`` (4): all before were delivered."""

    def __init__(self, streams):
        super().__init__({"stream": range(streams), "session": SESSION_BITS, "next": 16})


class Released(data.StructLayout):
    """A ``place`` that is free again, and the ``parity`` (1) that it was taken with.

    With ``express`` (1), an item that had no place has left: ``place`` is its stream.
    """

    def __init__(self, slots):
        super().__init__({"place": range(slots), "parity": 1, "express": 1})


def session_after(number):
    """The number of a stream's next session: a shift register gives it."""
    return Cat(~(number[3] ^ number[2]), number[:3])


def place_of(stream, ssn, slots):
    """The place in which an item waits, of ``slots``.

    The DDP-SSNs of a stream follow each other through all places. Streams begin as far from each
    other as may be: the number of the stream is turned round.
    """
    low = exact_log2(slots) - len(stream)
    return Cat(ssn[:low], (bit ^ ssn[low + k] for k, bit in enumerate(reversed(stream))))


def storage_of(m, name, shape, depth, reads, written):
    """A table that is read without a stall; what it holds at each of ``reads`` 2 cycles later.

    That knows of the writes of the cycles before; ``written`` is a write port's enable, address
    and data, registers by preference.
    """
    m.submodules[name] = storage = memory.Memory(
        shape=shape, depth=depth, init=[], attrs={"ram_style": "block", "no_rw_check": 1})
    write = storage.write_port()
    enable, address, value = written
    m.d.comb += [write.en.eq(enable), write.addr.eq(address), Value.cast(write.data).eq(value)]
    # What a block RAM gives for an entry that is being written differs from device to device.
    latest = [Signal(shape, name=f"{name}_latest{k}", reset_less=True) for k in range(2)]
    m.d.sync += [Value.cast(latest[0]).eq(value), latest[1].eq(latest[0])]
    found = []
    for k, address_read in enumerate(reads):
        read = storage.read_port()
        # Without reset, to become the output register of the block RAM.
        held = Signal(shape, name=f"{name}_held{k}", reset_less=True)
        clash = Signal(2, name=f"{name}_clash{k}")
        value_read = Signal(shape, name=f"{name}_read{k}")
        m.d.comb += [
            read.addr.eq(address_read),
            value_read.eq(Mux(clash[1], latest[1], held)),
        ]
        m.d.sync += [held.eq(read.data), clash.eq(Cat(enable & (address == address_read), clash))]
        found.append(value_read)
    return found


class _Tag(data.StructLayout):
    """Whose a place is."""

    def __init__(self, streams):
        super().__init__({
            "stream": range(streams), "session": SESSION_BITS, "ssn": 16, "parity": 1})


class Window(wiring.Component):
    """Says of each item whether it came before, and takes it if not.

    An item is inside of its stream's window if it is less than ``window`` ahead of the next one to
    be delivered. It came before if it is less than 32768 behind that one, or was taken and waits.

    What is taken gets a place in which it can wait for those before it. All streams share the
    places, and the item's stream and DDP-SSN say which one it is, so that there is no list of free
    ones and no table that says where an item waits: only a tag each. Where another stream's item
    is in the place, the item is OUTSIDE, unless it is the next one of its stream. That one never
    waits, so it needs no place: no stream can hold up another one.

    Whether a place is free is told by two bits: that of the tag changes when the place is taken,
    and that of the table that only ``released`` writes follows when it is free again.

    Latency: ``LATENCY`` cycles. Throughput: an item a cycle, whatever the streams. Reset: nothing
    is on its way; places that are taken, and windows, stay. Errors: none; ``o`` tells what is
    DUPLICATE, OUTSIDE or ILLEGAL.

    Parameters
    ----------
    streams : int
        A power of two.
    window : int
        Items, a power of two.
    slots : int
        Places, a power of two, no less than ``window`` and twice ``streams``.

    Members
    -------
    i : In(stream.Signature(Arrival(streams), always_ready=True))
    o : Out(stream.Signature(Judged(streams), always_ready=True))
    advance : In(stream.Signature(Advance(streams), always_ready=True))
        No later than ``released`` of what is before ``next``.
    released : In(stream.Signature(Released(slots), always_ready=True))
    look : In(range(streams)), next : Out(16)
        The next DDP-SSN of a stream, for the host; 2 cycles later.
    free : Out(range(slots + 1))
        Places that are free, 2 cycles later.
    """

    LATENCY = 6

    def __init__(self, *, streams=64, window=512, slots=1024):
        power_of_two("Window streams", streams, 2, 1 << 12)
        power_of_two("Window window", window, 2, 1 << 14)
        power_of_two("Window slots", slots, max(window, 2 * streams), 1 << 15)
        self.streams = streams
        self.window = window
        self.slots = slots
        super().__init__({
            "i": In(stream.Signature(Arrival(streams), always_ready=True)),
            "o": Out(stream.Signature(Judged(streams), always_ready=True)),
            "advance": In(stream.Signature(Advance(streams), always_ready=True)),
            "released": In(stream.Signature(Released(slots), always_ready=True)),
            "look": In(range(streams)),
            "next": Out(16),
            "free": Out(range(slots + 1)),
        })

    def elaborate(self, platform):
        m = Module()
        # item[k] came k cycles ago, and place[k] is its place.
        item = [self.i.payload]
        place = [Signal(range(self.slots), name="place_0")]
        valid = Signal(self.LATENCY - 1)
        m.d.sync += valid.eq(Cat(self.i.valid, valid))
        m.d.comb += place[0].eq(place_of(item[0].stream, item[0].ssn, self.slots))
        for k in range(1, 7):
            item.append(Signal(Arrival(self.streams), name=f"item_{k}", reset_less=True))
            place.append(Signal(range(self.slots), name=f"place_{k}", reset_less=True))
            m.d.sync += [item[k].eq(item[k - 1]), place[k].eq(place[k - 1])]

        # What was decided in the last cycles: taken[0] is of the item that came 6 cycles ago.
        taken, placed = Signal(5), Signal(5)
        express, parity = Signal(), Signal()
        tag, alone = self._tags(m, item, place, taken, placed, express, parity)
        base, given, passed = self._other_side(m, item, place, placed)
        crowd, twins = self._near(m, item, place)

        # 3 cycles after the item came: compared in nibbles.
        own = nibbles(_key(item[3]), _key(tag))
        sole = nibbles(Cat(item[3].session, item[3].ssn), Cat(alone.session, alone.ssn))
        own_4, sole_4 = Signal(len(own)), Signal(len(sole))
        live, lone_live, current = Signal(), Signal(), Signal()
        given_4, passed_4 = Signal(), Signal()
        distance = Signal(16)
        m.d.sync += [
            own_4.eq(own),
            sole_4.eq(sole),
            live.eq(tag.parity ^ given),
            lone_live.eq(alone.parity ^ passed),
            given_4.eq(given),
            passed_4.eq(passed),
            current.eq(base.session == item[3].session),
            distance.eq(item[3].ssn - base.next),
        ]
        # 4 cycles: where the session is not known yet, its next DDP-SSN is 0.
        behind, waits, other, inside, following = (Signal() for _ in range(5))
        given_5, passed_5 = Signal(), Signal()
        ahead = Signal(16)
        m.d.comb += ahead.eq(Mux(current, distance, item[4].ssn))
        m.d.sync += [
            behind.eq(ahead[15]),
            waits.eq((own_4.all() & live) | (sole_4.all() & lone_live)),
            other.eq(~own_4.all() & live),
            inside.eq(~ahead[exact_log2(self.window) :].any()),
            following.eq(~ahead.any()),
            given_5.eq(given_4),
            passed_5.eq(passed_4),
        ]
        # 5 cycles: the decision.
        came, blocked, takes = Signal(), Signal(), Signal()
        verdict = self.o.payload.verdict
        m.d.comb += [
            came.eq(behind | waits | (twins & taken).any()),
            blocked.eq(other | (crowd & placed).any()),
            takes.eq(valid[4] & (item[5].verdict == Verdict.FRESH) & (
                item[5].first | (inside & ~came & (~blocked | following)))),
        ]
        m.d.sync += [
            taken.eq(Cat(takes, taken)),
            placed.eq(Cat(takes & ~blocked, placed)),
            express.eq(blocked),
            parity.eq(~Mux(blocked, passed_5, given_5)),
            self.o.valid.eq(valid[4]),
            verdict.eq(item[5].verdict),
        ]
        with m.If((item[5].verdict == Verdict.FRESH) & ~takes):
            m.d.sync += verdict.eq(Mux(came, Verdict.DUPLICATE, Verdict.OUTSIDE))
        with m.If(item[5].verdict == Verdict.REFUSED):
            m.d.sync += verdict.eq(Mux(came, Verdict.DUPLICATE, Verdict.ILLEGAL))
        ticket = self.o.payload.ticket
        m.d.comb += [
            *(ticket[name].eq(item[6][name])
              for name in ("stream", "session", "ssn", "first", "final")),
            ticket.parity.eq(parity),
            ticket.express.eq(express),
        ]
        return m

    def _tags(self, m, item, place, taken, placed, express, parity):
        """Whose ``place[3]`` is, and the stream's last item that had none."""
        streams, slots = self.streams, self.slots
        # A place that is taken now is not yet seen by the items that came within 5 cycles.
        m.submodules.tags = tags = memory.Memory(
            shape=_Tag(streams), depth=slots, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        tag_write, tag_read = tags.write_port(), tags.read_port()
        tag = Signal(_Tag(streams), reset_less=True)
        expressed = data.StructLayout({"session": SESSION_BITS, "ssn": 16, "parity": 1})
        m.submodules.lone = lone = memory.Memory(
            shape=expressed, depth=streams, init=[],
            attrs={"ram_style": "block", "no_rw_check": 1})
        lone_write, lone_read = lone.write_port(), lone.read_port()
        alone = Signal(expressed, reset_less=True)
        m.d.comb += [
            tag_read.addr.eq(place[1]),
            tag_write.en.eq(placed[0]),
            tag_write.addr.eq(place[6]),
            _key(tag_write.data).eq(_key(item[6])),
            tag_write.data.parity.eq(parity),
            lone_read.addr.eq(item[1].stream),
            lone_write.en.eq(taken[0] & express),
            lone_write.addr.eq(item[6].stream),
            *(lone_write.data[name].eq(item[6][name]) for name in ("session", "ssn")),
            lone_write.data.parity.eq(parity),
        ]
        m.d.sync += [tag.eq(tag_read.data), alone.eq(lone_read.data)]
        return tag, alone

    def _other_side(self, m, item, place, placed):
        """What was delivered and released, of ``item[3]``: where its window begins, and whether
        its place, and its stream's item without one, are free.
        """
        streams, slots = self.streams, self.slots
        # The two tables of the other side are read together: where a place is seen to be free,
        # the window is seen to have gone on.
        moved, released = Signal.like(self.advance.p), Signal.like(self.released.p)
        moves, frees = Signal(), Signal()
        m.d.sync += [
            moves.eq(self.advance.valid), moved.eq(self.advance.p),
            frees.eq(self.released.valid), released.eq(self.released.p),
        ]
        base, guide = storage_of(
            m, "bases", data.StructLayout({"session": SESSION_BITS, "next": 16}), streams,
            (item[1].stream, self.look), (moves, moved.stream, Cat(moved.session, moved.next)))
        (given,) = storage_of(
            m, "given", unsigned(1), slots, (place[1],),
            (frees & ~released.express, released.place, released.parity))
        (passed,) = storage_of(
            m, "passed", unsigned(1), streams, (item[1].stream,),
            (frees & released.express, released.place[:len(self.look)], released.parity))
        m.d.comb += self.next.eq(guide.next)
        emptied = Signal()
        # Like the tables, it is not reset.
        free = Signal.like(self.free, init=slots, reset_less=True)
        m.d.comb += [emptied.eq(frees & ~released.express), self.free.eq(free)]
        counted(m, free, emptied, placed[0])
        return base, given, passed

    def _near(self, m, item, place):
        """Of ``item[5]``: which of the five before it have the same place, which are the same."""
        # Items that came shortly before, to the same place, and the same ones: who came 1 to 5
        # cycles earlier. Compared early, and kept until it is known what became of those.
        crowd, twins = Signal(5), Signal(5)
        m.d.sync += [
            crowd.eq(Cat(place[1] == place[1 + k] for k in range(1, 6))),
            twins.eq(Cat(_key(item[1]) == _key(item[1 + k]) for k in range(1, 6))),
        ]
        for k in range(3):
            later = Signal(10, name=f"near_{k}", reset_less=True)
            m.d.sync += later.eq(Cat(crowd, twins))
            crowd, twins = later[:5], later[5:]
        return crowd, twins


def _key(item):
    return Cat(item.stream, item.session, item.ssn)
