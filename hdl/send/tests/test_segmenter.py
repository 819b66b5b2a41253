"""Tests how messages are cut into segments: the golden model cuts the same messages, and captures'
senders sent the same segments.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import pytest
from ddp_rnic.hdl.lib.testing import Sinks, numbered, send, shared, simulate
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.send.pieces import PieceCutter
from ddp_rnic.hdl.send.segmenter import LEAST, OVERHEAD, Segmenter, SegmentTag
from ddp_rnic.hdl.send.work import QUANTUM
from ddp_rnic.hdl.spec.send import ENTRY, MESSAGE, Flag, Kind, Message, Piece
from ddp_rnic.sim.model.ddp import DataSource, decode_segment
from ddp_rnic.sim.model.memory import Memory, Region
from ddp_rnic.sim.model.send import SendQueue

STREAMS = 16
WIDTH = 512
#: Cycles from an entry to its segment, and from there to its first part if nothing waits.
LATENCY, PART_LATENCY = 8, 3
#: Cycles after the write of a MULPDU in which segments leave that were cut before.
CHANGE = 4
STAG, TO, LENGTH = 0x77AB01, (5 << 32) - 3000, 1 << 16


def octet_at(to):
    return (to * 0x9E3779B97F4A7C15 >> 40) & 0xFF


@dataclass
class Work:
    """A message of a stream. ``raw`` replaces its entries."""

    stream: int
    message: Message
    raw: bytes = b""

    @property
    def entries(self):
        octets = self.raw or self.message.encode()
        return [octets[at : at + ENTRY] for at in range(0, len(octets), ENTRY)]


def window(stream, entries, *, octets=QUANTUM, done=0, more=0):
    """Returns the entries of a turn."""
    return [
        {
            "stream": stream, "entry": int.from_bytes(entry, "little"),
            "rest": len(entries) - at,
            "turn": {"first": at == 0, "octets": octets, "done": done, "more": more},
        }
        for at, entry in enumerate(entries)
    ]  # fmt: skip


@dataclass
class Got:
    """A segment that left: its header, the parts of its payload, and the cycles of both."""

    stream: int
    ends: bool
    header: bytes
    length: int
    cycle: int
    parts: list = field(default_factory=list)
    cycles: list = field(default_factory=list)

    @property
    def refused(self):
        return self.parts[-1].refused

    def octets(self, inline):
        """Returns the segment; ``inline`` has the octets of the inline memory."""
        payload = bytearray()
        for part in self.parts:
            at = range(part.to, part.to + part.length)
            payload += bytes(inline[each % len(inline)] if part.inline else octet_at(each)
                             for each in at)  # fmt: skip
        assert len(payload) == self.length
        return self.header + bytes(payload)


async def listen(ctx, dut, results):
    """Takes the results of turns."""
    names = ("stream", "entries", "done", "needs", "stopped", "over", "spent", "again")
    ticks = ctx.tick().sample(dut.results.valid, dut.results.payload)
    async for *_, valid, numbers in ticks:
        if valid:
            results.append({name: numbers[name] for name in names})


async def give_turns(ctx, dut, works, octets, results, turns, **pauses):
    """Gives each message turns of ``octets`` until it was sent to its end, and notes ``turns``."""
    for work in works:
        result = {"done": 0, "entries": 0}
        while not result["entries"]:
            turn = window(work.stream, work.entries, octets=octets, done=result["done"])
            await send(ctx, dut.i, turn, **pauses)
            while not results:
                await ctx.tick()
            result = results.popleft()
            turns.append(result)
            assert result["stream"] == work.stream and result["again"] == result["stopped"]
            assert result["entries"] == (0 if result["stopped"] else len(work.entries))
            assert result["needs"] == (len(work.entries) if result["stopped"] else 0)


def cut_all(works, mulpdus, *, changes=(), msns=(), stall=0.0, idle=0.0, hold=0, rows=256,
            octets=None, turns=None, limit=60_000):  # fmt: skip
    """Returns the segments, the octets of the inline memory, and the cycle of the first entry.

    ``mulpdus`` has the MULPDU of each stream, and ``changes`` what is written to it later: pairs of
    a cycle, counted from the first entry, and of values. Before the cycle ``hold`` no segment is
    taken. With ``octets``, that is the size of a turn, and a message that stops gets another one;
    their results go to ``turns``.
    """
    dut = shared(Segmenter, WIDTH, STREAMS, inline=rows)
    rng, got, inline, begun = random.Random(1), [], bytearray(64 * rows), []
    reserved, changes, results = deque(), deque(changes), deque()
    outputs = {"segments": dut.segments, "parts": dut.parts, "inline": dut.inline}
    sinks = Sinks(outputs, stalls=dict.fromkeys(outputs, stall), rng=rng)

    async def give(ctx):
        await send(ctx, dut.msns, msns)
        for stream, mulpdu in mulpdus.items():
            await send(ctx, dut.mulpdus, [{"stream": stream, "mulpdu": mulpdu}])
        begun.append(True)
        # Each message has a turn of its own.
        entries = [
            each for work in works
            for each in window(work.stream, work.entries)
        ]  # fmt: skip
        if octets is None:
            await send(ctx, dut.i, entries, idle=idle, rng=rng)
            return
        noted = [] if turns is None else turns
        await give_turns(ctx, dut, works, octets, results, noted, idle=idle, rng=rng)

    def note(seen, cycle):
        """Takes an output; returns whether it is a segment."""
        nonlocal row
        if seen.name == "segments":
            segment = seen.payload
            header = segment.header.to_bytes(18, "little")[: segment.lead]
            tag = SegmentTag().from_bits(segment.tag)
            reserved.append(Got(tag.stream, bool(tag.ends), header, segment.length, cycle))
            if not tag.stops:
                got.append(reserved[-1])
        elif seen.name == "parts":
            assert reserved, "a part leaves before there is room for its segment"
            now, part = reserved[0], seen.payload
            assert part.stream == now.stream
            now.parts.append(part)
            now.cycles.append(cycle)
            if part.last:
                reserved.popleft()
        else:
            inline[64 * row : 64 * row + 64] = seen.payload.to_bytes(64, "little")
            row = (row + 1) % rows
        return seen.name == "segments"

    async def take(ctx):
        nonlocal first
        writes = 0
        ticks = ctx.tick().sample(*sinks.signals, dut.i.valid, dut.i.ready)
        async for cycle, (*values, valid, ready) in numbered(ticks):
            if first is None and valid and ready:
                first = cycle
            if writes:
                ctx.set(dut.mulpdus.valid, 0)
            writes = changes and first is not None and cycle - first == changes[0][0]
            if writes:
                ctx.set(dut.mulpdus.payload, changes.popleft()[1])
                ctx.set(dut.mulpdus.valid, 1)
            taken = [note(seen, cycle) for seen in sinks.look(values) if seen.taken]
            ctx.set(dut.reserved.valid, any(taken))
            if sum(each.ends for each in got) == len(works) and not reserved:
                return
            if first is not None and cycle - first >= hold:
                sinks.set_ready(ctx)

    row, first = 0, None
    simulate(dut, take, background=[give, partial(listen, dut=dut, results=results)], limit=limit)
    return got, inline, first


def a_memory():
    memory = Memory()
    octets = bytearray(octet_at(at) for at in range(TO, TO + LENGTH))
    memory.register(Region(stag=STAG, to=TO, length=LENGTH, pd=0), octets)
    return memory


class Model:
    """The golden model's send queue of each stream."""

    def __init__(self, mulpdus):
        memory = a_memory()
        self.queues = {stream: SendQueue(DataSource(size), memory)
                       for stream, size in mulpdus.items()}  # fmt: skip

    def send(self, works):
        """Returns the segments of messages, each with its stream."""
        for work in works:
            queue = self.queues[work.stream]
            queue.post(work.message)
            for segment in iter(queue.send, None):
                yield work.stream, segment


def a_message(rng, longest):
    """Returns a random message: inline, or of up to nine pieces, some without an octet."""
    values = {"rsvdulp": rng.getrandbits(40)}
    if rng.random() < 0.1:
        sink = Piece(rng.getrandbits(32), rng.getrandbits(32), rng.getrandbits(64))
        return Message(Kind.READ, pieces=(sink,), stag=rng.getrandbits(32),
                       to=rng.getrandbits(64), **values)  # fmt: skip
    if rng.random() < 0.5:
        to = rng.choice((rng.getrandbits(63), (1 << 32) - rng.randrange(longest + 1)))
        values |= {"kind": Kind.TAGGED, "stag": rng.getrandbits(32), "to": to}
    else:
        values |= {"kind": Kind.UNTAGGED, "qn": rng.randrange(4)}
    if rng.random() < 0.4:
        length = rng.choice((0, 1, 31, 32, 33, 96, 97, rng.randrange(400)))
        return Message(flags=Flag.INLINE, octets=rng.randbytes(length), **values)
    pieces = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6, 7, 9))):
        length = rng.choice((0, 1, 16, 50, 100, rng.randrange(1, longest)))
        pieces.append(Piece(STAG, length, TO + rng.randrange(LENGTH - length)))
    return Message(pieces=tuple(pieces), **values)


def all_msns(value):
    return [{"stream": stream, "qn": qn, "msn": value}
            for stream in range(STREAMS) for qn in range(4)]  # fmt: skip


@pytest.mark.parametrize(("stall", "idle"), [*long((0, 0), (0.4, 0)), (0.3, 0.4)])
def test_random_messages_are_cut_as_the_model_cuts_them(stall, idle):
    rng = random.Random(7)
    sizes = {stream: rng.choice((19, 64, 118, 119, 500)) for stream in range(STREAMS)}
    works = [Work(rng.randrange(STREAMS), a_message(rng, 300)) for _ in range(100)]
    expected = [*Model(sizes).send(works)]
    got, inline, _ = cut_all(
        works, sizes, msns=all_msns(1), stall=stall, idle=idle, octets=QUANTUM)
    assert not any(each.refused for each in got)
    assert [(each.stream, each.octets(inline)) for each in got] == expected
    assert [each.ends for each in got] == [bool(octets[0] & 0x40) for _, octets in expected]


@pytest.mark.parametrize("octets", [1, 200, 700])
def test_a_message_goes_on_where_its_last_turn_stopped(octets):
    """RFC 5041 section 5.3: the offset of each segment is that of its first octet."""
    rng = random.Random(octets)
    sizes = {stream: rng.choice((64, 118, 119, 500)) for stream in range(STREAMS)}
    works = [Work(rng.randrange(STREAMS), a_message(rng, 300)) for _ in range(40)]
    expected = [*Model(sizes).send(works)]
    got, inline, _ = cut_all(works, sizes, msns=all_msns(1), stall=0.2, octets=octets)
    assert not any(each.refused for each in got)
    assert [(each.stream, each.octets(inline)) for each in got] == expected


def read(length, at=TO):
    return Piece(STAG, length, at)


@pytest.mark.parametrize("most", [386, 5000, 16_000])
@pytest.mark.parametrize("octets", [1, 410, 411, 820, 0x1555, 0x2AAA, QUANTUM])
def test_a_turn_counts_its_octets(octets, most):
    """A segment costs its payload and ``OVERHEAD``, or ``LEAST``. It begins if octets are left."""
    turns, length = [], 4 * max(most, octets) + 100
    work = Work(9, Message(Kind.TAGGED, pieces=(read(length),), to=0))
    cut_all([work], {9: most + 14}, octets=octets, turns=turns)
    left = length
    for turn in turns:
        spent = 0
        while left and (not spent or spent < octets):
            spent += max(LEAST, min(most, left) + OVERHEAD)
            left -= min(most, left)
        assert turn["spent"] == (spent >= octets) and turn["over"] == max(0, spent - octets)
        assert turn["done"] == (length - left if left else 0)
    assert not left


def test_the_msn_wraps_to_zero_for_each_queue_and_stream():
    """RFC 5041 section 4.3: "The MSN value MUST wrap to 0 after a value of 0xFFFFFFFF."."""
    queues = [(stream, qn) for _ in range(3) for stream in (3, 4) for qn in (2, 3)]
    works = [Work(stream, Message(Kind.UNTAGGED, qn=qn)) for stream, qn in queues]
    got, inline, _ = cut_all(works, {3: 19, 4: 19}, msns=all_msns(0xFFFFFFFF))
    headers = [decode_segment(each.octets(inline))[0] for each in got]
    assert [(each.stream, header.qn) for each, header in zip(got, headers, strict=True)] == queues
    assert [header.msn for header in headers] == [0xFFFFFFFF] * 4 + [0] * 4 + [1] * 4


def test_a_segment_every_two_cycles_without_a_bubble():
    """Messages of one segment, of several, of one stream and of many, tagged and untagged."""
    kinds = [
        (1, Kind.TAGGED, 64), (1, Kind.TAGGED, 64), (2, Kind.UNTAGGED, 64), (3, Kind.TAGGED, 300),
        (4, Kind.UNTAGGED, 0), (4, Kind.UNTAGGED, 1), (4, Kind.UNTAGGED, 200), (5, Kind.TAGGED, 1),
    ]  # fmt: skip
    works = [Work(stream, Message(kind, pieces=(read(length),)))
             for stream, kind, length in 4 * kinds]  # fmt: skip
    sizes = dict.fromkeys(range(STREAMS), 100)
    got, _, start = cut_all(works, sizes, msns=all_msns(1))
    assert len(got) == len([*Model(sizes).send(works)])
    cycles = [each.cycle for each in got]
    assert cycles == [*range(cycles[0], cycles[0] + 2 * len(cycles), 2)]
    parts = [cycle for each in got for cycle in each.cycles]
    assert parts == [*range(parts[0], parts[0] + 2 * len(parts), 2)]
    # The budget: from the entry to the segment, and from there to its first part.
    assert (cycles[0] - start, parts[0] - cycles[0]) == (LATENCY, PART_LATENCY)


def lengths_of(got):
    return [len(each.header) + each.length for each in got]


@pytest.mark.parametrize(("before", "after"), [(100, 40), (40, 100), (100, 19), (19, 1000)])
def test_a_change_of_mulpdu_holds_from_the_next_segment_on(before, after):
    """RFC 5041 section 3 has DDP "adapt as MULPDU changes come about"."""
    message = Message(Kind.TAGGED, pieces=(read(2000),))
    for cycle in range(20, 24):
        # Another stream's MULPDU changes one cycle before.
        changes = [(cycle - 1, {"stream": 8, "mulpdu": 60}),
                   (cycle, {"stream": 9, "mulpdu": after})]  # fmt: skip
        got, inline, start = cut_all(
            [Work(9, message)], {9: before}, changes=changes, octets=QUANTUM)
        assert b"".join(each.octets(inline)[14:] for each in got) == bytes(
            octet_at(TO + at) for at in range(2000))  # fmt: skip
        # The change is written one cycle after ``cycle``; a segment leaves 3 cycles after its cut.
        expected = [after if each.cycle - start > cycle + CHANGE else before for each in got[:-1]]
        assert lengths_of(got)[:-1] == expected and before in expected and after in expected
        assert [decode_segment(each.octets(inline))[0].to for each in got] == [
            sum(each.length for each in got[:k]) for k in range(len(got))]  # fmt: skip


def test_a_change_of_mulpdu_holds_for_segments_that_wait_for_room():
    message = Message(Kind.TAGGED, pieces=(read(1500),))
    changes = [(100, {"stream": 9, "mulpdu": 50})]
    got, *_ = cut_all([Work(9, message), Work(9, message)], {9: 100}, changes=changes, hold=200)
    lengths = lengths_of(got)
    kept = lengths.index(50)
    assert 0 < kept < 16 and lengths[:kept] == [100] * kept and max(lengths[kept:]) == 50


def entry(*, entries=1, pieces=1, lengths=(64, 0), length=64, **changes):
    """Returns a message's first entry, whatever is wrong with it."""
    good = Message(Kind.UNTAGGED, pieces=tuple(map(read, lengths))).encode()
    values = {"entries": entries, "pieces": pieces, "length": length, **changes}
    number = int.from_bytes(good, "little")
    for name, octet, bit, bits, _ in MESSAGE:
        if name in values:
            number &= ~((1 << bits) - 1 << 8 * octet + bit)
            number |= values[name] << 8 * octet + bit
    return number.to_bytes(ENTRY, "little")


MORE = Message(Kind.UNTAGGED, pieces=(read(0),) * 6).encode()[ENTRY:]
#: Entries that are not valid, by their fault.
WRONG = {
    "kind": entry(kind=9), "CONTROL": entry(kind=Kind.CONTROL),
    "queue": entry(qn=4), "no entry": entry(entries=0), "an entry too few": entry(pieces=3),
    "an entry too many": entry(entries=2) + MORE, "many pieces": entry(pieces=255),
    "READ of two pieces": entry(kind=Kind.READ, pieces=2),
    "READ inline": entry(kind=Kind.READ, flags=Flag.INLINE),
    "READ of another length": entry(kind=Kind.READ, length=63),
    "inline with pieces": entry(flags=Flag.INLINE, length=32),
    "inline too long": entry(flags=Flag.INLINE, length=33, pieces=0),
    "inline longest": entry(flags=Flag.INLINE, length=(1 << 32) - 1, pieces=0),
    "length too great": entry(length=65), "length too small": entry(length=63),
    "length of nothing": entry(length=0), "no piece": entry(pieces=0),
    "the second piece is too long": entry(pieces=2, lengths=(63, 2)),
    "the second piece is too short": entry(pieces=2, lengths=(63, 0)),
    "the second piece is too much": entry(pieces=2, lengths=(64, 1)),
    "pieces for another segment": entry(pieces=2, lengths=(200, 200), length=150),
    "segments without pieces": entry(pieces=2, lengths=(60, 4), length=1000),
    "more pieces than needed": entry(pieces=6, entries=2, length=60) + Message(
        Kind.UNTAGGED, pieces=(read(9),) * 6).encode()[ENTRY:],
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_entry_refuses_its_own_message_alone(wrong):
    rng = random.Random(3)
    works = [Work(5, a_message(rng, 200)) for _ in range(8)]
    for at in (2, 5, 6):
        works.insert(at, Work(2, Message(Kind.UNTAGGED), WRONG[wrong]))
    sizes = {5: 70, 2: 80}
    got, inline, _ = cut_all(works, sizes, msns=all_msns(1))
    expected = [*Model(sizes).send(work for work in works if not work.raw)]
    assert [(each.stream, each.octets(inline)) for each in got if each.stream == 5] == expected
    refused = [each for each in got if each.stream == 2]
    assert sum(each.ends for each in refused) == 3
    # Whatever has left before was a part of the message; from the fault on, nothing leaves.
    for each, after in zip(refused, refused[1:], strict=False):
        assert each.ends or not each.refused or after.refused
    assert all(each.refused for each in refused if each.ends)


@pytest.mark.parametrize("sent", [33, 1944])
def test_an_inline_message_that_became_shorter_names_no_row_of_a_later_one(sent):
    """The host may change entries of a message that waits. Reads of the inline memory go upwards:
    one past the message's own rows would be taken for the end of all rows before it.
    """
    dut, parts = PieceCutter(STREAMS), []
    to = 64 + ENTRY // 2
    piece = {"to": to, "length": 32, "inline": 1, "last": 1}

    async def watch(ctx):
        ctx.set(dut.o.ready, 1)
        async for *_, valid, part in ctx.tick().sample(dut.o.valid, dut.o.payload):
            if valid:
                parts.append((part.to, part.length, part.refused, part.last))

    async def run(ctx):
        shares = [{"length": sent, "skip": 1}, {"length": 0, "ends": 1, "refused": 1},
                  {"length": 32, "ends": 1}]
        later = piece | {"to": to + ENTRY}
        await send(ctx, dut.pieces, [piece])
        await send(ctx, dut.shares, shares[:1])
        await send(ctx, dut.shares, shares[1:2])
        await send(ctx, dut.pieces, [later])
        await send(ctx, dut.shares, shares[2:])
        await ctx.tick().repeat(20)

    simulate(dut, run, background=[watch])
    assert parts == [(to, 0, 1, 1), (to + ENTRY, 32, 0, 1)]


@pytest.mark.parametrize("kind", [Kind.TAGGED, Kind.UNTAGGED])
@pytest.mark.parametrize("mulpdu", [0, 14, 18])
def test_a_mulpdu_without_room_for_an_octet_refuses_the_message(kind, mulpdu):
    works = [Work(1, Message(kind, pieces=(read(40),))), Work(2, Message(kind, pieces=(read(4),)))]
    got, *_ = cut_all(works, {1: mulpdu, 2: 100}, msns=all_msns(1))
    refused = kind is Kind.UNTAGGED or mulpdu < 15
    assert [each.refused for each in got if each.stream == 1][0] == refused
    assert [each.refused for each in got if each.stream == 2] == [False]


@pytest.mark.long
@pytest.mark.parametrize("kind", [Kind.TAGGED, Kind.UNTAGGED])
def test_a_message_of_the_greatest_length(kind):
    """RFC 5041 section 5.2: "The ULP Message Length MUST be less than 2^32."."""
    length = (1 << 32) - 1
    work = Work(1, Message(kind, pieces=(read(length - 5), read(5)), to=(1 << 32) - 7))
    got, *_ = cut_all([work], {1: 65535}, msns=all_msns(1), octets=QUANTUM, limit=2_000_000)
    at = 0
    for each in got:
        header, _ = decode_segment(each.header)
        assert header.last == each.ends and not each.refused
        assert at == (header.to - (1 << 32) + 7 if header.tagged else header.mo)
        at += each.length
    assert at == length


@pytest.mark.parametrize(
    ("name", "value"), [("streams", 3), ("streams", 8192), ("inline", 512), ("inline", 2)]
)
def test_parameters_are_checked(name, value):
    refused(
        f"Segmenter {name} must be a power of two", Segmenter, WIDTH,
        **{"streams": 16, name: value})  # fmt: skip
    refused(f"Segmenter {name} must be an integer", Segmenter, WIDTH, error=TypeError,
            **{"streams": 16, name: 4.0})  # fmt: skip
