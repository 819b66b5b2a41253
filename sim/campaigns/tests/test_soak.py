"""Tests of ``rnic soak``: the gateware on random traffic, and the report of differences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rnic.cli import app
from ddp_rnic.cli import soak as endurance
from ddp_rnic.hdl.ddp.moderation import WRAP
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.ddp import (
    ERROR_TEXT,
    LOCAL_CATASTROPHIC,
    NO_BUFFER,
    QUEUE_OVERRUN,
    WAITING,
)
from ddp_rnic.sim.campaigns.soak import soak
from ddp_rnic.sim.campaigns.traffic import chunk as campaign
from ddp_rnic.sim.campaigns.traffic.chunk import Chunk, Traffic, size
from ddp_rnic.sim.campaigns.traffic.draw import draw
from ddp_rnic.sim.capture.capture import Endpoint
from ddp_rnic.sim.capture.streams import Arrival, Stream, Untagged
from ddp_rnic.sim.engines.compiled import CompiledEngine, _flat
from ddp_rnic.sim.engines.engine import (
    Await,
    DeviceError,
    Drain,
    Engine,
    Meanwhile,
    Operation,
    Outcome,
    Packet,
    Pause,
    Poll,
    Resume,
    Ring,
    WriteRegister,
)
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.replay.differences import find_differences
from ddp_rnic.sim.replay.expectation import Buffer, Golden
from ddp_rnic.sim.replay.host import Allotment, Host, Space, guard_octets
from ddp_rnic.sim.replay.plan import Plan
from ddp_rnic.sim.replay.regions import Region, slot
from numpy.typing import NDArray
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def counters(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """Lets counters begin with 0 without --long: the simulator is then that of other tests."""
    made = campaign.config_of
    if not pytestconfig.getoption("--long"):
        monkeypatch.setattr(
            campaign, "config_of", lambda *sizes: replace(made(*sizes), full_counters=False)
        )


@pytest.mark.parametrize("bus_errors", [*long(False), True])
@pytest.mark.parametrize("width", NARROW)
def test_random_traffic_agrees(width: int, bus_errors: bool) -> None:
    traffic = Traffic(41041 + width, bus_errors=bus_errors)
    tally = soak(CompiledEngine(), campaign.config_of(width, 64), traffic, 6000)
    assert tally.failure is None
    assert tally.segments >= 6000 and tally.errors > 5 and tally.deliveries > 1000


def test_one_stream_alone_agrees() -> None:
    assert (
        soak(CompiledEngine(), campaign.config_of(64, 1), Traffic(3, streams=1), 1500).failure
        is None
    )


#: Devices with the least of everything that the traffic can have; it needs 52 Steering Tags.
LEAST = RnicConfig(
    stags=64, streams=2, buffer_octets=4096, outstanding=8, queue_depth=4, buffers=16, pages=16,
    backlog=64, completion_queues=2, exception_octets=4096, address=32,
)  # fmt: skip


def test_chunks_are_drawn_for_the_least_device() -> None:
    for number in range(4):
        chunk = draw(LEAST, Traffic(1, LEAST.streams, bus_errors=True), number, 500)
        assert chunk.segments >= 500
        assert all(each.address < 1 << 32 for each in chunk.plan.buffers)
        assert chunk.plan.base + len(chunk.plan.memory) <= 1 << 32


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        replace(LEAST, full_counters=True),
        replace(LEAST, width=512, relaxed=True),
        replace(LEAST, width=256, streams=16, transmit=True, responder=True),
        replace(LEAST, width=128, sctp=True, associations=2, window=4, initiates=1),
    ],
    ids=["64", "512 relaxed", "256 that answers Reads", "128 with SCTP"],
)
def test_the_least_device_agrees_with_the_model(config: RnicConfig) -> None:
    traffic = Traffic(1, config.streams, bus_errors=True)
    assert soak(CompiledEngine(), config, traffic, 3000).failure is None


def test_a_stream_reports_one_error_of_a_segment_that_raises_two() -> None:
    """RFC 5041 section 7.1: after an error, "DDP MUST silently drop any subsequent incoming DDP
    Segments", so that a stream fails once. Here the bus refuses the write of the segment that is
    also one message too many.
    """
    config = RnicConfig()
    stream = Stream(
        5, 5, Endpoint("10.0.1.1", 5), Endpoint("10.0.0.1", 7174), crc=True, markers=False
    )
    golden, space = Golden((), {"10.0.0.1": 7}, config), Space()
    ring = Ring(space.take(32 << 4, 0, 64), 4)
    host = Host(config, golden, space)
    host.operations += ring.program()
    host.enable(stream)
    region = Region("10.0.0.1", 0x1234, 0, 64)
    allotment = Allotment(region, space.take(64, 0, 64))
    host.register(allotment)
    sender = MpaSender(crc=stream.crc)
    messages = [TaggedHeader(0x1234, 0, last=number > 0, rsvdulp=number) for number in range(12)]
    for number, header in enumerate(messages):
        position = sender.position
        refused = number == WAITING
        raw = sender.send(header.encode() + bytes(8 if refused else 0))
        arrival = Arrival(stream, number + 1, number + 1, position, raw)
        assert golden.live(5) == (number <= WAITING)
        golden.receive(arrival)
        if refused:
            assert not golden.live(5)  # it has one message too many
            golden.refuse_write(arrival, range(8))
        host.send(Packet(5, position, raw))
        host.idle()
    plan = Plan(
        config, ("10.0.0.1",), (stream,), host.operations, [allotment], [], ring,
        guard_octets(space.size), golden,
    )  # fmt: skip
    assert [(error.arrival.stream, error.number) for error in golden.errors] == [
        (stream, LOCAL_CATASTROPHIC)
    ]
    memory = plan.memory.copy()
    faults = [range(allotment.address, allotment.address + 8)]
    outcome = CompiledEngine().run(config, plan.operations, memory, ring=ring, faults=faults)
    assert find_differences(plan, outcome, memory) == []


# -- the drawn traffic ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chunks() -> list[Chunk]:
    return [draw(RnicConfig(), Traffic(12, bus_errors=True), number, 5000) for number in range(6)]


@pytest.mark.long
def test_equal_seeds_draw_equal_chunks_and_shorter_ones_are_their_beginning(
    chunks: list[Chunk],
) -> None:
    traffic = Traffic(12, bus_errors=True)
    for segments in (1, 700, 5000):
        short = draw(RnicConfig(), traffic, 2, segments)
        assert segments <= short.segments < segments + 300
        whole = chunks[2].plan.operations
        packets = [at for at, each in enumerate(whole) if isinstance(each, Packet)]
        last = packets[
            sum(isinstance(each, Packet) for each in short.plan.operations) - short.closing - 1
        ]
        assert short.plan.operations[: last + 1] == whole[: last + 1]
        assert (short.stalls, short.faults) == (chunks[2].stalls, chunks[2].faults)
    assert draw(RnicConfig(), traffic, 3, 1).plan.operations != short.plan.operations[:-1]


def test_every_error_is_drawn(chunks: list[Chunk]) -> None:
    errors = [error.number for chunk in chunks for error in chunk.plan.golden.errors]
    assert set(errors) == set(ERROR_TEXT)
    segments = sum(chunk.segments for chunk in chunks)
    piled = sum(chunk.wrong["piled up"] + chunk.wrong["tiny"] for chunk in chunks)
    alone = len(errors) - errors.count(LOCAL_CATASTROPHIC) - piled
    assert piled and segments / 100 < alone < segments / 50
    longest = max(len(error.arrival.raw) for chunk in chunks for error in chunk.plan.golden.errors)
    assert longest > 4 * RnicConfig().longest_fpdu


#: The kinds of wrong segments that any chunk may have.
WRONG = {
    "untagged version", "QN of many bits", "QN of one bit", "any MSN", "queue that is closed",
    "queue without buffers", "before a queue without buffers", "MSN behind the last buffer",
    "MSN far behind", "MSN before the first", "MSN far before", "MSN at half", "MSN out of turn",
    "MO", "MO at the end", "MO far", "MO of all bits", "an octet too long", "untagged, short",
    "key", "index", "any STag", "before the region", "behind the region", "at the last octet",
    "2^32 too far", "far behind", "far before", "tagged version", "without the write right",
    "of another host", "of another stream", "revoked", "an octet behind the region",
    "an octet behind 2^64", "up to 2^64", "across 2^64", "long", "tagged, short",
    "a bit too long", "a bit behind the region", "a bit behind 2^64", "from before 2^64 across",
}  # fmt: skip


def test_every_kind_of_wrong_segment_is_drawn_about_equally_often(chunks: list[Chunk]) -> None:
    drawn = sum((chunk.wrong for chunk in chunks), Counter[str]())
    assert all(drawn.pop(kind) for kind in ("piled up", "tiny", "tiny, dropped"))
    assert set(drawn) == WRONG
    assert min(drawn.values()) >= len(chunks) / 2, drawn.most_common()[-3:]
    assert max(drawn.values()) <= 4 * len(chunks), drawn.most_common(3)


def test_queues_without_buffers_refuse_segments_and_take_them_once_one_is_posted(
    chunks: list[Chunk],
) -> None:
    """RFC 5041 section 7.2: "Invalid MSN - no buffer available"."""
    bare = {
        (error.arrival.stream.number, header.queue)
        for chunk in chunks
        for error in chunk.plan.golden.errors
        if error.number == NO_BUFFER and isinstance(header := error.arrival.header, Untagged)
    }
    delivered = {
        (buffer.stream, buffer.qn)
        for chunk in chunks
        for each in chunk.plan.golden.deliveries
        if (buffer := each.buffer) is not None
    }
    assert len(bare) > 10 and bare & delivered


def test_regions_above_60_kilobytes_are_written_at_their_ends(chunks: list[Chunk]) -> None:
    long = [
        (each.target.length, each.offset, len(each.payload))
        for chunk in chunks
        for each in chunk.plan.golden.placements
        if isinstance(each.target, Region) and each.target.length > 1 << 16
    ]
    assert max(length for length, *_ in long) > 1 << 20
    assert sum(offset > 1 << 16 for _, offset, _ in long) > 100
    assert sum(offset + count == length for length, offset, count in long) > 10


def test_the_longest_segments_are_drawn(chunks: list[Chunk]) -> None:
    most = 4 * RnicConfig().longest_fpdu - 6  # ULPDU_Length and CRC
    placed = {len(each.arrival.ulpdu) for chunk in chunks for each in chunk.plan.golden.placements}
    assert max(placed) == most


def test_fpdus_of_each_power_of_two_are_drawn(chunks: list[Chunk]) -> None:
    longest = RnicConfig().longest_fpdu
    placed = {
        len(each.arrival.raw) // 4 for chunk in chunks for each in chunk.plan.golden.placements
    }
    for power in range(3, longest.bit_length()):
        assert placed & {*range(1 << power, (1 << power) + 6)}, power


def test_fpdus_of_each_power_of_two_begin_in_the_beat_of_a_marker(chunks: list[Chunk]) -> None:
    placed = {
        len(arrival.ulpdu) // 4
        for chunk in chunks
        for each in chunk.plan.golden.placements
        if (arrival := each.arrival).stream.markers and -arrival.position % 512 in (4, 8)
    }
    for power in range(3, RnicConfig().longest_fpdu.bit_length()):
        assert placed & {*range((1 << power) - 2, (1 << power) + 4)}, power


def test_arguments_are_written_without_their_command(chunks: list[Chunk]) -> None:
    address = regs.address("BUFFER_LENGTH")
    without = 0
    for chunk in chunks:
        names = [each.address for each in chunk.plan.operations if isinstance(each, WriteRegister)]
        post = regs.address("BUFFER_POST")
        for at, each in enumerate(names):
            without += each == address and post not in names[at : at + 8]
    assert without > 5


def test_queues_overrun_on_many_streams_at_once(chunks: list[Chunk]) -> None:
    overran = [
        sum(error.number == QUEUE_OVERRUN for error in chunk.plan.golden.errors) for chunk in chunks
    ]
    assert max(overran) > 4 and min(overran) > 0


def test_the_bus_refuses_a_completion(chunks: list[Chunk]) -> None:
    """CQ_STATE then shows that its queue has failed, and that no other one has."""
    for chunk in chunks:
        polls = [
            each.value
            for each in chunk.plan.operations
            if isinstance(each, Poll) and each.address == regs.address("CQ_STATE")
        ]
        assert polls.count(regs.pack("CQ_STATE", failed=1)) == 2
        assert polls.count(0) >= RnicConfig().completion_queues


def test_exceptions_take_up_to_the_whole_exception_queue(chunks: list[Chunk]) -> None:
    most = RnicConfig().exception_octets
    lengths = {len(each.octets) for chunk in chunks for each in chunk.plan.golden.exceptions}
    assert max(lengths) > most - 12 and len([each for each in lengths if each > most / 2]) > 5
    assert any(chunk.plan.golden.exceptions_dropped for chunk in chunks)


def test_regions_of_more_than_2_32_octets_are_written(chunks: list[Chunk]) -> None:
    vast = [
        each.offset.bit_length()
        for chunk in chunks
        for each in chunk.plan.golden.placements
        if isinstance(each.target, Region) and each.target.length > 1 << 32
    ]
    assert len(vast) > 100 and len(set(vast)) > 10 and max(vast) > 40


def test_segments_of_streams_that_are_not_there_are_drawn(chunks: list[Chunk]) -> None:
    outside = [
        (number, counts)
        for chunk in chunks
        for number, counts in chunk.plan.golden.counts.items()
        if number >= 64
    ]
    assert len({number for number, _ in outside}) > 6
    assert all(counts.dropped for _, counts in outside)


def test_fpdus_end_near_markers(chunks: list[Chunk]) -> None:
    ends = Counter(
        (arrival.position + len(arrival.raw)) % 512
        for chunk in chunks
        for each in chunk.plan.golden.placements
        if (arrival := each.arrival).stream.markers
    )
    usual = sum(ends.values()) / 127  # no FPDU ends right after a marker
    assert all(ends[at] > usual for at in (504, 508, 0, 8, 12)), ends


def test_all_rings_end_with_responses_to_come(chunks: list[Chunk]) -> None:
    names = {register.address: register.name for register in regs.REGISTERS}
    for chunk in chunks:
        writes = [
            (names[each.address], each.value)
            for each in chunk.plan.operations
            if isinstance(each, WriteRegister) and each.address in names
        ]
        # A value that a register has is not written again.
        enables = [at for at, (name, _) in enumerate(writes) if name == "CQ_ENABLE"]
        assert writes[enables[-1]][1] == 0
        commits = writes[enables[-1] :].count(("CQ_COMMIT", 1))
        assert commits >= len(chunk.plan.ring.queues)


def test_slots_of_the_stag_table_differ_in_a_bit(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        slots = {slot(each.region.stag, RnicConfig().stags) for each in chunk.plan.allotments}
        near = sum(any(each ^ 1 << bit in slots for bit in range(10)) for each in slots)
        assert near > len(slots) / 2


def test_the_bus_refuses_writes_of_many_streams_at_once(chunks: list[Chunk]) -> None:
    """Streams fail with packets right after one another."""
    most = run = 0
    for chunk in chunks:
        last = -2
        for error in chunk.plan.golden.errors:
            if error.number == LOCAL_CATASTROPHIC:
                run = run + 1 if error.arrival.frame == last + 1 else 1
                most, last = max(most, run), error.arrival.frame
    assert most > 4


def test_host_memory_crosses_a_multiple_of_2_32_inside_regions_and_inside_buffers() -> None:
    crossed: Counter[type] = Counter()
    for number in range(40):
        plan = draw(RnicConfig(), Traffic(10), number, 1000).plan
        lies = {each.region: each for each in plan.allotments}
        for each in plan.golden.placements:
            place = lies[each.target] if isinstance(each.target, Region) else each.target
            first = plan.base + place.address
            if place.pages is None and first >> 32 != first + each.offset + len(each.payload) >> 32:
                crossed[type(each.target)] += 1
        if crossed[Region] > 10 and crossed[Buffer]:
            return
    pytest.fail(f"crossed in {crossed}")


def test_the_host_posts_and_sets_up_beside_the_traffic(chunks: list[Chunk]) -> None:
    names = {register.address: register.name for register in regs.REGISTERS}
    beside: Counter[str] = Counter()
    for chunk in chunks:
        for each in chunk.plan.operations:
            if isinstance(each, Meanwhile):
                beside.update(
                    names[access.address]
                    for access in each.operations
                    if isinstance(access, WriteRegister)
                )
    for name in ("BUFFER_POST", "STREAM_COMMIT", "STAG_COMMIT", "REVOKE_STAG", "QUEUE_CLOSE"):
        assert beside[name] > 5, (name, beside)


def test_registers_are_accessed_in_octets_and_where_it_is_refused(chunks: list[Chunk]) -> None:
    operations = [each for chunk in chunks for each in _flat(chunk.plan.operations)]
    writes = [each for each in operations if isinstance(each, WriteRegister)]
    assert {each.response for each in writes} == {0, 2, 3}
    assert len({each.strobes for each in writes}) == 10  # octets beside each other
    assert {each.response for each in operations if isinstance(each, Poll)} == {0, 3}


def test_everything_that_the_host_does_is_drawn(chunks: list[Chunk]) -> None:
    operations = [each for chunk in chunks for each in _flat(chunk.plan.operations)]
    assert {Await, Pause, Poll, Resume} <= {type(each) for each in operations}
    names = {register.address: register.name for register in regs.REGISTERS}
    writes = [each for each in operations if isinstance(each, WriteRegister) and not each.response]
    written = [names[each.address] for each in writes]
    for name in ("REVOKE_STAG", "REVOKE_STREAM", "QUEUE_CLOSE", "PAGE_COMMIT"):
        assert written.count(name) > 5, name
    for kinds in (
        {(stream.crc, stream.markers) for chunk in chunks for stream in chunk.plan.streams},
        {
            (allotment.pages is None, allotment.region.stream is None)
            for chunk in chunks
            for allotment in chunk.plan.allotments
        },
        {
            (isinstance(each.target, Buffer), len(each.payload) == 1)
            for chunk in chunks
            for each in chunk.plan.golden.placements
        },
        {
            (error, len(each.octets) > 1000)
            for chunk in chunks
            for each in chunk.plan.operations
            if isinstance(each, Packet)
            for error in (each.error,)
        },
    ):
        assert len(kinds) == 4, kinds
    queues = {each.qn for chunk in chunks for each in chunk.plan.buffers}
    lengths = {each.length for chunk in chunks for each in chunk.plan.buffers}
    assert queues == {0, 1, 2, 3} and {0, 1, 64} < lengths


def test_an_interrupt_before_its_time_or_late_is_a_difference() -> None:
    """Tests a count of 1, and a timeout that exceeds the cycles of the run."""
    config, traffic = campaign.config_of(64, 64), Traffic(5)

    def spoil(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        outcome.interrupts = outcome.interrupts[outcome.interrupts < 0]

    failure = soak(Spoiled(spoil), config, traffic, 100, only=0).failure
    assert failure and {each.what for each in failure.differences} == {"interrupt"}
    assert failure.differences[0].got == "none"

    def hurry(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        outcome.interrupts = outcome.delivered + 1

    failure = soak(Spoiled(hurry), config, traffic, 100, only=0).failure
    assert failure and {each.what for each in failure.differences} == {"interrupt"}
    assert failure.differences[0].got.startswith("in cycle")


def test_a_write_after_the_rnic_says_that_it_is_done_is_a_difference() -> None:
    """The RNIC says so 60 cycles too early: for STATUS.idle, and for the end of a revocation."""
    config, traffic = campaign.config_of(64, 64), Traffic(5)

    def hurry(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        outcome.polled = outcome.polled - 60

    failure = soak(Spoiled(hurry), config, traffic, 3000, only=1).failure
    assert failure
    late = [each.where for each in failure.differences if each.what == "write"]
    for reason in ("nothing is in flight", "the revocation is done"):
        assert any(where.endswith(reason) for where in late), late


def test_an_interrupt_comes_across_the_wrap_of_the_count_of_cycles() -> None:
    chunk = draw(campaign.config_of(64, 64), Traffic(5), 0, 1)
    plan = chunk.plan
    outcome = CompiledEngine().run(
        plan.config, plan.operations, plan.memory.copy(),
        ring=plan.ring, stalls=chunk.stalls, base=plan.base,
    )  # fmt: skip
    assert outcome.delivered[0] < WRAP < outcome.interrupts[0]
    assert outcome.interrupts[0] - outcome.delivered[0] >= chunk.moderated[0].timeout


@pytest.mark.long
def test_counts_of_16_bits_wrap() -> None:
    number = next(each for each in range(20) if size(each) > 1 << 16)
    tally = soak(
        CompiledEngine(), campaign.config_of(64, 64), Traffic(5), size(number), only=number
    )
    assert tally.failure is None and tally.deliveries > 1 << 16


def test_segments_that_take_too_many_cycles_are_a_difference() -> None:
    config, traffic = campaign.config_of(64, 64), Traffic(5)
    number = next(each for each in range(20) if draw(config, traffic, each, 1).rates)

    def delay(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        outcome.cycles *= 2
        for name in ("polled", "responses", "delivered", "interrupts"):
            setattr(outcome, name, getattr(outcome, name) * 2)
        outcome.writes, outcome.taken = outcome.writes.copy(), outcome.taken.copy()
        for column in (outcome.writes["cycle"], outcome.taken["first"]):
            column *= 2

    failure = soak(Spoiled(delay), config, traffic, 1, only=number).failure
    assert failure and "rate" in {each.what for each in failure.differences}


def test_regions_are_revoked_while_their_segments_are_under_way(chunks: list[Chunk]) -> None:
    """Only the revocation comes between the last segment and the poll for its end."""
    under_way = 0
    for chunk in chunks:
        for each in chunk.still:
            before = chunk.plan.operations[: each.poll]
            packets = [at for at, one in enumerate(before) if isinstance(one, Packet)]
            under_way += not each.idle and not any(
                isinstance(one, Drain) for one in before[packets[-1] :]
            )
    assert under_way > 10


def test_streams_complete_in_all_queues(chunks: list[Chunk]) -> None:
    """A chunk has one queue, two, or all but one; and each of them gets completions."""
    numbers = set()
    for chunk in chunks:
        ring = chunk.plan.ring
        delivered = {each.completion.stream for each in chunk.plan.golden.deliveries}
        assert {ring.bound.get(each, 0) for each in delivered} == {*ring.queues}
        numbers.add(len(ring.queues))
    assert numbers == {1, 2, chunk.plan.config.completion_queues - 1}


def test_regions_and_buffers_lie_apart(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        plan = chunk.plan
        pieces = sorted({(start, end) for start, end, *_ in plan.pieces() if start < end})
        pieces.append((plan.ring.octets.start - plan.base, plan.ring.octets.stop - plan.base))
        pieces.sort()
        assert all(end <= start for (_, end), (start, _) in zip(pieces, pieces[1:], strict=False))
        assert pieces[-1][1] < len(plan.memory)


# -- differences ----------------------------------------------------------------------------------


class Spoiled(Engine):
    """The gateware, with ``spoil`` applied to its results: memory and outcome."""

    name = "spoiled"

    def __init__(self, spoil: Callable[[NDArray[np.uint8], Outcome], None]) -> None:
        self.spoil = spoil

    def run(
        self,
        config: RnicConfig,
        operations: Iterable[Operation],
        memory: NDArray[np.uint8],
        **options: Any,
    ) -> Outcome:
        outcome = CompiledEngine().run(config, operations, memory, **options)
        self.spoil(memory, outcome)
        return outcome


def placed(outcome: Outcome) -> int:
    """Returns how many octets were placed, or one more: with --long the counter begins at -1."""
    return (outcome.counters["PLACED_OCTETS"] + 1) % 2**64


def command(monkeypatch: pytest.MonkeyPatch, engine: Engine, *arguments: object) -> Any:
    monkeypatch.setattr(endurance, "load", lambda name: engine)
    return CliRunner().invoke(app.app, ["soak", *map(str, arguments)])


@pytest.mark.parametrize("waves", [False, *long(True)])
def test_a_difference_is_reported_with_its_shortest_replay(
    waves: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def spoil(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        if placed(outcome) > 40000:
            outcome.counters["DELIVERED"] += 1

    engine = Spoiled(spoil)
    result = command(monkeypatch, engine, "--segments", 400, "--width", 64, "--seed", 9)
    assert result.exit_code == 1
    assert result.stdout.startswith("seed 9\ndifference in counter at DELIVERED: expected")
    (replay,) = re.findall(r"^replay: rnic soak (.*) --waves all$", result.stdout, re.MULTILINE)
    arguments = replay.split()
    assert (
        arguments[:-1] == ("--seed 9 --width 64 --streams 64 --chunk 0 --segments".split())
        and 40 < int(arguments[-1]) < 400
    )
    assert "64 bits: differ on 4" in result.stdout

    monkeypatch.chdir(tmp_path)
    again = command(monkeypatch, engine, *arguments, *["--waves", "all"] * waves)
    assert again.exit_code == 1 and "difference in counter at DELIVERED" in again.stdout
    assert not waves or (tmp_path / "soak-64.fst").stat().st_size
    assert command(monkeypatch, CompiledEngine(), *arguments).exit_code == 0


def test_a_run_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        if placed(outcome) > 4000:
            raise DeviceError("cycle 7: nothing moved")

    result = command(monkeypatch, Spoiled(spoil), "--segments", 100, "--width", 64, "--seed", 8)
    assert result.exit_code == 1
    assert "failure: cycle 7: nothing moved" in result.stdout
    assert re.search(r"--chunk 0 --segments \d?\d ", result.stdout)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_widths_are_run_in_turn(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    widths = "--width", width, "--width", 64
    result = command(monkeypatch, CompiledEngine(), "--segments", 60, *widths)
    assert result.exit_code == 0 and not result.stderr
    seed, first, second = result.stdout.splitlines()
    assert re.fullmatch(r"seed \d+", seed)
    for line, bits in ((first, width), (second, 64)):
        found = re.match(rf"{bits} bits: agree on (\d+) segments, \d+ octets placed, ", line)
        # The last packet may have some segments more than are wanted.
        assert found and int(found[1]) >= 60, line


@pytest.mark.parametrize(
    "arguments", [["--width", 100], ["--waves", "all"], ["--cycles", "1..2"], ["--streams", 0]]
)
def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch, arguments: list[object]) -> None:
    result = command(monkeypatch, CompiledEngine(), *arguments)
    assert result.exit_code == 2 and "agree" not in result.stdout


def test_an_interruption_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(memory: NDArray[np.uint8], outcome: Outcome) -> None:
        raise KeyboardInterrupt

    assert command(monkeypatch, Spoiled(spoil), "--width", 64).exit_code == 130
