"""Tests protection, revocation and load of the assembled datapath, end to end.

The outcome of traffic is compared with the golden model where a scenario can express it; timing is
checked against the cycles that the engine reports.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ddp_rnic.cocotb_tests.races import (
    LEAD,
    Command,
    Race,
    Run,
    errors,
    probe,
    revoke_stag,
    revoke_stream,
    write,
)
from ddp_rnic.cocotb_tests.scenario import Scenario, device_of, tagged, untagged
from ddp_rnic.hdl.lib.tests.long import NARROW, long
from ddp_rnic.hdl.spec import commands, regs
from ddp_rnic.hdl.spec.completion import OCTETS, Status
from ddp_rnic.hdl.spec.config import WIDTHS, RnicConfig
from ddp_rnic.hdl.spec.ddp import (
    BASE_OR_BOUNDS,
    INVALID_STAG,
    QUEUE_OVERRUN,
    STAG_NOT_ASSOCIATED,
    TO_WRAP,
    ErrorNumber,
)
from ddp_rnic.hdl.spec.stag import Access
from ddp_rnic.sim.engines import compiled
from ddp_rnic.sim.engines.choice import load
from ddp_rnic.sim.engines.engine import (
    UNSTALLED,
    Await,
    Drain,
    ExceptionPacket,
    Meanwhile,
    Operation,
    Outcome,
    Packet,
    Pause,
    Poll,
    Resume,
    Ring,
    Stalls,
    Wait,
    WriteRegister,
    operations_of,
    until,
)
from ddp_rnic.sim.model.memory import Region
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.replay.expectation import Pages
from ddp_rnic.sim.replay.tables import Tables

PD = 7
#: Streams: the one that loses its rights, one that must not be affected, and some for checks.
VICTIM, BYSTANDER, PROBES = 3, 40, range(10, 16)
TO = 0x1234_5678_9ABC
#: A bus that makes placements slow, and keeps many in flight.
SLOW = Stalls(write=0.5, response=0.3, response_latency=60)


@pytest.fixture(scope="module", autouse=True)
def _looked_up_once() -> Iterator[None]:
    """Looks for a build once, not in each of thousands of short runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "build", functools.cache(compiled.build))
        yield


# -- revocation -----------------------------------------------------------------------------------
#
# RFC 5041 section 8.3.1, item 6: "An RNIC MUST ensure that the network interface can no longer
# modify an Advertised Buffer after the ULP revokes remote access rights for an STag."


def race(*streams: int) -> Race:
    """Returns a race with these streams enabled, and those for checks."""
    started = Race()
    for number in (*streams, *PROBES):
        started.host.stream(number, pd=PD)
    return started


def at_every_cycle(
    race: Race, width: int, command: Command, after: Sequence[Operation]
) -> Iterator[tuple[int, Run]]:
    """Plays a race with the command at every cycle, from before the first packet to after the last
    response; yields how many of the victim's segments were placed, and the run.

    A segment that is placed is in memory before the command reads back done. The later the command,
    the more segments are placed, from none to all, and in many of the runs octets of them were on
    their way. Another stream's writes come no later than without the command.
    """
    whole = race.play(width, stalls=SLOW)
    spans = race.spans(VICTIM)
    assert race.placed(whole, VICTIM) == len(spans) and not whole.errors
    others = [race.spans(number) for number in race.streams - {VICTIM}]
    begun = int(whole.outcome.taken["first"][0]) - LEAD
    counts, amid = [], 0
    for offset in race.offsets(whole):
        run = race.play(width, command, offset, after=after, stalls=SLOW)
        counts.append(race.placed(run, VICTIM))
        last = run.last_write(spans)
        assert last < run.done, f"offset {offset}: a write in cycle {last}, done in {run.done}"
        amid += begun + offset + 20 < last
        for each in others:
            assert run.last_write(each) <= whole.last_write(each), f"offset {offset}"
        yield counts[-1], run
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == len(spans)
    assert amid > len(counts) // 4


@pytest.mark.parametrize("width", NARROW)
def test_of_a_long_placement_nothing_is_written_once_its_revocation_is_done(width: int) -> None:
    long = race(VICTIM)
    region = long.host.region(0x0012_3407, TO, 3600, 2500, pd=PD)
    long.tagged(VICTIM, region, 13, random.Random(1).randbytes(2000 + 3 * width))
    after = [probe(PROBES[0], region)]
    for count, run in at_every_cycle(long, width, revoke_stag(region.stag), after):
        refused = [(VICTIM, INVALID_STAG)] * (1 - count)
        assert run.errors == [*refused, (PROBES[0], INVALID_STAG)]


@pytest.mark.long
@pytest.mark.parametrize("width", NARROW)
def test_of_several_segments_those_for_another_region_are_placed(width: int) -> None:
    rng = random.Random(2)
    several = race(VICTIM, BYSTANDER)
    mine = several.host.region(0x0012_3407, TO, 2000, 2500, pd=PD)
    other = several.host.region(0x0012_3507, TO, 2000, 4800, pd=PD)
    at = 0
    for length in (300, 1, 640, 64, 500):
        several.tagged(VICTIM, mine, at, rng.randbytes(length))
        several.tagged(BYSTANDER, other, at, rng.randbytes(length))
        at += length + 3
    after = [probe(PROBES[0], mine)]
    for count, run in at_every_cycle(several, width, revoke_stag(mine.stag), after):
        refused = [(VICTIM, INVALID_STAG)] * (count < 5)
        assert run.errors == [*refused, (PROBES[0], INVALID_STAG)]
        assert run.outcome.counters["DROPPED"] == max(0, 4 - count)


@pytest.mark.parametrize("width", NARROW)
def test_a_revoked_stream_writes_nothing_and_leaves_its_domain_to_others(width: int) -> None:
    rng = random.Random(3)
    several = race(VICTIM, BYSTANDER)
    host = several.host
    # The first and the last entry of the table.
    bound = [
        host.region(index << 8 | 5, TO, 500, address, stream=VICTIM)
        for index, address in ((0, 500), (0x3FF, 5000))
    ]
    shared = host.region(0x0040_0103, TO, 4000, 8200, pd=PD)
    own = host.region(0x0040_0204, TO, 1000, 13001, stream=BYSTANDER)
    host.queue(VICTIM, 0)
    host.buffer(VICTIM, 0, 300, 15001)
    several.tagged(VICTIM, bound[0], 1, rng.randbytes(200))
    several.tagged(BYSTANDER, shared, 2000, rng.randbytes(100))
    several.tagged(VICTIM, shared, 3, rng.randbytes(400))
    several.untagged(VICTIM, 0, 1, 15001, rng.randbytes(290))
    several.tagged(BYSTANDER, own, 0, rng.randbytes(300))
    several.tagged(VICTIM, bound[1], 100, rng.randbytes(350))
    several.tagged(VICTIM, shared, 500, rng.randbytes(20))
    several.tagged(BYSTANDER, shared, 2200, rng.randbytes(50))
    several.over()
    several.tagged(BYSTANDER, shared, 3000, rng.randbytes(2))
    several.tagged(BYSTANDER, own, 500, rng.randbytes(500))
    after: list[Operation] = [
        probe(PROBES[0], bound[0]),
        probe(PROBES[1], bound[1]),
        *operations_of(commands.set_stream(VICTIM, pd=PD, crc=True)),
        probe(VICTIM, bound[1]),
    ]
    gone = [(number, INVALID_STAG) for number in (*PROBES[:2], VICTIM)]
    spans = several.spans(VICTIM)
    for count, run in at_every_cycle(several, width, revoke_stream(VICTIM), after):
        # A segment on a stream that is disabled is dropped and counted, and is no error.
        assert run.errors == gone
        assert run.outcome.counters["DROPPED"] == len(spans) - count


@pytest.mark.parametrize("width", WIDTHS)
def test_a_send_with_invalidate_that_the_host_answers(width: int) -> None:
    # RFC 5040 section 4: the RsvdULP of a Send with Invalidate has its opcode, 4, and the STag. The
    # completion gives it to the host; this peer continues to write until it is stopped.
    rng = random.Random(4)
    sends = race(VICTIM)
    region = sends.host.region(0x0012_3407, TO, 4000, 2500, pd=PD)
    rsvdulp = 0x44 << 32 | region.stag
    sends.host.queue(VICTIM, 0)
    sends.host.buffer(VICTIM, 0, 64, 8001, cookie=77)
    sends.tagged(VICTIM, region, 0, rng.randbytes(900))
    sends.untagged(VICTIM, 0, 1, 8001, b"done", rsvdulp)
    for k in range(100):
        sends.tagged(VICTIM, region, 30 * k, rng.randbytes(90 + k))
    counts = []
    for wait in (0, 10, 37, 90, 300, 3000):
        then = [Await(2), Wait(wait), *revoke_stag(region.stag)]
        run = sends.play(width, then=then, after=[probe(PROBES[0], region)], stalls=SLOW)
        counts.append(sends.placed(run, VICTIM))
        assert run.outcome.completions[1].rsvdulp == rsvdulp
        assert run.last_write(sends.spans(VICTIM)) < run.done
        refused = [(VICTIM, INVALID_STAG)] * (counts[-1] < len(sends.sent))
        assert run.errors == [*refused, (PROBES[0], INVALID_STAG)]
    assert counts == sorted(counts) and 2 <= counts[0] < counts[-1] == len(sends.sent)


#: The commands, one after the other.
OVERLAPS = [
    ("stag", "stag"),
    ("stream", "stag"),
    ("stag", "stream"),
    ("stream", "stream"),
    ("stream", "stream", "stream"),
]


@pytest.mark.parametrize("gap", [0, 1, 2, 3, 7, 30, 300, 1000, 1030, 1060])
@pytest.mark.parametrize("kinds", OVERLAPS, ids="-".join)
def test_a_revocation_while_another_is_under_way(kinds: tuple[str, ...], gap: int) -> None:
    # Each stream has an entry at either end of the table, so that the first sweep is between its
    # two entries when the second one begins.
    rng = random.Random(5)
    numbers = (VICTIM, BYSTANDER, 50)[: len(kinds)]
    all_of_them = race(*numbers)
    regions: list[Region] = []
    then: list[Operation] = []
    for at, (number, kind) in enumerate(zip(numbers, kinds, strict=True)):
        mine = [
            all_of_them.host.region(
                index << 8, TO, 1000, 256 + 1300 * (len(regions) + k), stream=number
            )
            for k, index in enumerate((at, 0x3FF - at)[: 1 if kind == "stag" else 2])
        ]
        regions += mine
        *command, _ = revoke_stag(mine[0].stag) if kind == "stag" else revoke_stream(number)
        then += [*command, Wait(gap)]
        for k in range(12):
            all_of_them.tagged(number, mine[k % len(mine)], 80 * k, rng.randbytes(70))
    then[-1] = until(revoking=0)
    after = [probe(number, region) for number, region in zip(PROBES, regions, strict=False)]
    run = all_of_them.play(64, then=then, after=after, stalls=SLOW)
    spans = [range(each.address, each.address + each.length) for each in regions]
    assert run.last_write(spans) < run.done
    refused = [each for each in run.errors if each[0] in PROBES]
    assert refused == [(number, INVALID_STAG) for number in PROBES[: len(regions)]]


def test_a_command_during_a_sweep_is_for_the_entry_that_it_named() -> None:
    # Nearly all entries are bound to the stream, so that the sweep writes the table in nearly every
    # cycle. The host writes other entries immediately.
    host = Scenario(1 << 14)
    for number in (VICTIM, BYSTANDER, *PROBES):
        host.stream(number, pd=PD)
    bound = [host.region(index << 8, TO, 1, index, stream=VICTIM) for index in range(4, 0x400)]
    gone, kept, late = (
        Region(stag=index << 8, to=TO, length=1, address=0x3000 + 128 * index, pd=PD)
        for index in (1, 2, 3)
    )
    for each in (gone, kept):
        host.region(each.stag, each.to, each.length, each.address, pd=PD)
    memory = host.memory.copy()
    outcome = load("compiled").run(
        RnicConfig(),
        [
            *host.operations,
            *operations_of(commands.revoke_stream(VICTIM)[:-1]),
            Wait(50),
            *operations_of(commands.revoke_stag(gone.stag)[:-1]),
            *operations_of(
                commands.set_stag(
                    late.stag, Access.REMOTE_WRITE, to=TO, length=1, address=late.address, pd=PD
                )
            ),
            *write(STAG_INDEX=kept.stag >> 8, STAG_ADDR_LO=0),
            until(revoking=0),
            *(
                probe(*pair)
                for pair in zip(PROBES, (gone, bound[0], bound[-1], late), strict=False)
            ),
            probe(BYSTANDER, kept),
        ],
        memory,
        ring=host.ring,
    )
    assert errors(outcome) == [(number, INVALID_STAG) for number in PROBES[:3]]
    unlike = memory != host.memory
    unlike[host.ring.octets.start : host.ring.octets.stop] = False
    assert np.flatnonzero(unlike).tolist() == [kept.address, late.address]


# -- what an RNIC must (RFC 5041 section 8.3.1) ---------------------------------------------------


class Host(Scenario):
    """A scenario whose host can change rights."""

    def grant(self, region: Region, access: Access) -> None:
        """Replaces the entry of a region by one with these rights."""
        self._model.revoke(region.stag)
        self.region(
            region.stag, region.to, region.length, region.address,
            pd=region.pd, stream=region.stream, access=access,
        )  # fmt: skip

    def again(self, number: int, pd: int = PD) -> None:
        """Sets up a stream again, whether it had an error or not."""
        self.stream(number, pd=pd, position=self.position(number))


def conforms(width: int, scenario: Scenario, stalls: Stalls = UNSTALLED) -> Outcome:
    """Runs a scenario and checks it against the model."""
    memory = scenario.memory.copy()
    outcome = load("compiled").run(
        device_of(width), scenario.operations, memory, ring=scenario.ring, stalls=stalls
    )
    scenario.check(outcome, memory)
    return outcome


@pytest.mark.parametrize("width", WIDTHS)
def test_rnic_requirement_1_no_access_from_another_protection_domain(width: int) -> None:
    # "An RNIC MUST ensure that a specific DDP Stream in a specific Protection Domain cannot access
    # an STag in a different Protection Domain."
    host = Host()
    host.stream(VICTIM, pd=PD)
    own = host.region(0x0000_0501, TO, 100, 500, pd=PD)
    for bit in range(16):
        other = host.region(0x0000_0601 + (bit << 8), TO, 100, 1000 + 200 * bit, pd=PD ^ 1 << bit)
        host.packet(VICTIM, tagged(own.stag, TO + bit, b"own"), tagged(other.stag, TO, b"another"))
        host.again(VICTIM)
    # The same stream in the other domain: the domain decides.
    host.again(VICTIM, pd=PD ^ 1 << 15)
    host.packet(VICTIM, tagged(other.stag, TO, b"now"), tagged(own.stag, TO, b"no more"))
    outcome = conforms(width, host)
    assert errors(outcome) == [(VICTIM, STAG_NOT_ASSOCIATED)] * 17
    assert outcome.counters["PLACED_SEGMENTS"] == 17


@pytest.mark.parametrize("width", WIDTHS)
def test_rnic_requirement_2_an_stag_of_one_stream_is_of_no_use_to_others(width: int) -> None:
    # "An RNIC MUST ensure that if an STag is limited in scope to a single DDP Stream, no other DDP
    # Stream can use the STag."
    host = Host()
    host.stream(VICTIM, pd=PD)
    own = host.region(0x0000_0501, TO, 100, 500, stream=VICTIM)
    # All other streams, though their domain has the number of the stream.
    others = [number for number in range(64) if number != VICTIM]
    for number in others:
        host.stream(number, pd=VICTIM)
        host.packet(number, tagged(own.stag, TO, b"another"))
        host.packet(VICTIM, tagged(own.stag, TO + number, b"own"))
    # And the STag of a stream that does not exist, whose number differs in one bit.
    for bit in range(16):
        other = host.region(0x0000_0601 + (bit << 8), TO, 10, 1000, stream=VICTIM ^ 1 << bit)
        host.packet(VICTIM, tagged(other.stag, TO, b"another"))
        host.again(VICTIM)
        host.revoke(other)
    outcome = conforms(width, host)
    assert errors(outcome) == [
        (number, STAG_NOT_ASSOCIATED) for number in (*others, *[VICTIM] * 16)
    ]
    assert outcome.counters["PLACED_SEGMENTS"] == len(others)


@pytest.mark.parametrize("width", WIDTHS)
def test_rnic_requirement_3_no_access_outside_the_buffer(width: int) -> None:
    # "An RNIC MUST ensure that a Remote Peer is not able to access memory outside the buffer
    # specified when the STag was enabled for remote access."
    host = Host(1 << 15)
    host.stream(VICTIM, pd=PD)
    rng = random.Random(6)
    expected = []
    # Every lane of a beat, lengths around a beat, at the lowest TO, the highest, and random ones.
    for lane in range(0, 64, 3):
        length = (1, 7, 63, 64, 65, 200)[lane % 6] + lane % 2
        address = 256 + 320 * lane + lane
        base = (0, (1 << 64) - length, TO)[lane % 3]
        region = host.region((lane + 1) << 8 | lane, base, length, address, pd=PD)
        inside = tagged(region.stag, base, rng.randbytes(length))
        past = TO_WRAP if base + length == 1 << 64 else BASE_OR_BOUNDS
        wrong = [
            ((base + length) % (1 << 64), 1, BASE_OR_BOUNDS),
            (base, length + 1, past),
            (base + length - 1, 2, past),
            ((base - 1) % (1 << 64), 1, BASE_OR_BOUNDS),
            ((base + (1 << 32)) % (1 << 64), 1, BASE_OR_BOUNDS),
            ((1 << 64) - 1, 2, past),
        ]
        for to, octets, number in wrong:
            host.packet(VICTIM, inside, tagged(region.stag, to, rng.randbytes(octets)))
            host.again(VICTIM)
            expected.append((VICTIM, number))
    assert errors(conforms(width, host)) == expected


@pytest.mark.parametrize("width", WIDTHS)
def test_rnic_requirement_4_a_buffer_and_a_to_range_come_and_go(width: int) -> None:
    # "An RNIC MUST provide a mechanism for the ULP to establish and revoke the association of a ULP
    # Buffer to an STag and TO range."
    host = Host()
    for number in (VICTIM, BYSTANDER):
        host.stream(number, pd=PD)
    stag, expected = 0x0000_0501, []

    def refused(number: ErrorNumber, stag: int, to: int) -> None:
        host.packet(VICTIM, tagged(stag, to, b"refused"))
        host.again(VICTIM)
        expected.append((VICTIM, number))

    refused(INVALID_STAG, stag, TO)
    region = host.region(stag, TO, 100, 500, pd=PD)
    host.packet(VICTIM, tagged(stag, TO, b"one" * 30))
    host.revoke(region)
    refused(INVALID_STAG, stag, TO)
    # Another buffer under the same STag, at another range; for one stream, instead of for all.
    region = host.region(stag, TO + 1000, 50, 1501, stream=VICTIM)
    host.packet(VICTIM, tagged(stag, TO + 1000, b"two" * 16))
    refused(BASE_OR_BOUNDS, stag, TO)
    host.packet(BYSTANDER, tagged(stag, TO + 1000, b"another stream"))
    expected.append((BYSTANDER, STAG_NOT_ASSOCIATED))
    host.revoke(region)
    refused(INVALID_STAG, stag, TO + 1000)
    # The entry changes to another STag: by its key, and by its upper bits.
    for other in (stag ^ 0x80, stag + (1024 << 8)):
        region = host.region(other, TO, 100, 2503, pd=PD)
        refused(INVALID_STAG, stag, TO)
        host.packet(VICTIM, tagged(other, TO, other.to_bytes(4, "big")))
        host.revoke(region)
        refused(INVALID_STAG, other, TO)
    assert errors(conforms(width, host)) == expected


@pytest.mark.parametrize("owner", [{"pd": PD}, {"stream": VICTIM}], ids=["domain", "stream"])
@pytest.mark.parametrize("width", WIDTHS)
def test_rnic_requirement_5_rights_are_taken_back_and_given_again(
    width: int, owner: dict[str, Any]
) -> None:
    # "An RNIC MUST provide a mechanism for the ULP to establish and revoke read, write, or read and
    # write access to the ULP Buffer referenced by an STag."
    host = Host()
    host.stream(VICTIM, pd=PD)
    neither, read, both = Access.NONE, Access.REMOTE_READ, Access.REMOTE_READ | Access.REMOTE_WRITE
    region = host.region(0x0000_0501, TO, 1000, 503, access=both, **owner)
    refusals = 0
    for step, access in enumerate(
        (Access.REMOTE_WRITE, read, both, read, Access.REMOTE_WRITE, neither, both, neither)
    ):
        for revoked in (False, True):
            # Replaced directly, and replaced after a revocation.
            if revoked:
                host.revoke(region)
                host.region(region.stag, TO, 1000, 503, access=access, **owner)
            else:
                host.grant(region, access)
            host.packet(VICTIM, tagged(region.stag, TO + 100 * step + 10 * revoked, b"payload"))
            if Access.REMOTE_WRITE not in access:
                host.again(VICTIM)
                refusals += 1
    outcome = conforms(width, host)
    assert errors(outcome) == [(VICTIM, INVALID_STAG)] * refusals
    assert (refusals, outcome.counters["PLACED_SEGMENTS"]) == (8, 8)


@pytest.mark.parametrize("owner", [{"pd": PD}, {"stream": VICTIM}], ids=["domain", "stream"])
@pytest.mark.parametrize("width", WIDTHS)
def test_rnic_requirement_6_after_a_revocation_the_buffer_does_not_change(
    width: int, owner: dict[str, Any]
) -> None:
    # "An RNIC MUST ensure that the network interface can no longer modify an Advertised Buffer
    # after the ULP revokes remote access rights for an STag." The tests of revocation above check
    # every cycle of one; this one checks a peer's attempts after it is done.
    host = Host()
    host.stream(VICTIM, pd=PD)
    region = host.region(0x0012_3405, TO, 1000, 503, **owner)
    host.packet(VICTIM, tagged(region.stag, TO, b"placed"))
    if "stream" in owner:
        (gone,) = host.end(VICTIM)
        assert gone == region
        host.packet(VICTIM, tagged(region.stag, TO, b"disabled"))
        host.again(VICTIM)
    else:
        host.revoke(region)
    for stag in (region.stag, region.stag ^ 1, region.index & 0x3FF << 8 | 5):
        for to, payload in ((TO, b"anew"), (TO + 900, bytes(100)), (0, b"zero")):
            host.packet(VICTIM, tagged(stag, to, payload), tagged(stag, to, b"silence"))
            host.again(VICTIM)
    outcome = conforms(width, host)
    assert errors(outcome) == [(VICTIM, INVALID_STAG)] * 9
    assert outcome.counters["PLACED_OCTETS"] == len(b"placed")


# -- scattered pages ------------------------------------------------------------------------------


def paged(shift: int, *, markers: bool) -> Scenario:
    """Returns segments for a region and a buffer in pages of ``2**shift`` octets, around every
    position where a page ends. The pages are in disorder, between others that must not change.
    """
    rng = random.Random(shift)
    count = 8 if shift == 12 else 3
    frames = [number << shift for number in range(1, 4 * count, 2)]
    rng.shuffle(frames)
    scenario = Scenario(4 * count << shift)
    scenario.stream(VICTIM, pd=PD, markers=markers)
    scenario.stream(BYSTANDER, pd=PD, markers=markers)
    offset = rng.randrange(1 << shift) | 1
    length = (count << shift) - offset - 77
    region = scenario.region(
        0x0012_3407, TO, length, pd=PD, pages=Pages(shift, tuple(frames[:count]), offset)
    )
    plain = scenario.region(0x0012_3508, TO, 1000, 61, pd=PD)
    scenario.queue(VICTIM, 0)
    scenario.buffer(
        VICTIM, 0, length, pages=Pages(shift, tuple(frames[count:]), offset ^ 6), cookie=5
    )

    def both(at: int, size: int) -> None:
        """Sends to the region and to the buffer, and to contiguous memory."""
        scenario.packet(
            VICTIM,
            tagged(region.stag, TO + at, rng.randbytes(size), last=False),
            untagged(rng.randbytes(size), mo=at, last=False),
            tagged(plain.stag, TO + rng.randrange(900), rng.randbytes(99), last=False),
        )

    both(0, 1)
    both(length - 1, 1)
    both(length - 700, 700)
    for number in range(1, count):
        end = (number << shift) - offset
        for before, after in ((1, 1), (0, 64), (64, 0), (7, 60), (63, 65), (700, 700)):
            both(end - before, before + after)
    if shift == 12:
        # Over several pages, from and to the end of a page and other positions.
        both((1 << shift) - offset, 3 << shift)
        both(5, 5 << shift)
        both((2 << shift) - offset - 1, (2 << shift) + 2)
    for segment in (
        tagged(plain.stag, TO, b""),
        untagged(b"", mo=length),
        tagged(region.stag, TO, b""),
    ):
        scenario.packet(VICTIM, segment)
    scenario.packet(BYSTANDER, tagged(region.stag, TO + length - 9, bytes(10)))
    return scenario


@pytest.fixture(scope="module")
def paged_scenarios() -> dict[tuple[int, bool], Scenario]:
    return {(shift, marks): paged(shift, markers=marks)
            for shift in (12, 16, 21) for marks in (False, True)}  # fmt: skip


@pytest.mark.parametrize("stalls", [UNSTALLED, SLOW], ids=["unstalled", "slow"])
@pytest.mark.parametrize("markers", [False, True], ids=["plain", "markers"])
@pytest.mark.parametrize("shift", [12, 16, 21])
@pytest.mark.parametrize("width", WIDTHS)
def test_scattered_pages_hold_what_one_piece_would(
    width: int,
    shift: int,
    markers: bool,
    stalls: Stalls,
    paged_scenarios: dict[tuple[int, bool], Scenario],
) -> None:
    outcome = conforms(width, paged_scenarios[shift, markers], stalls)
    assert errors(outcome) == [(BYSTANDER, BASE_OR_BOUNDS)]


# -- many streams ---------------------------------------------------------------------------------

#: Segments in a measurement; a quarter of them only fills the pipeline.
SEGMENTS = 512


def load_of(
    config: RnicConfig, numbers: Sequence[int], payload: int, kind: str
) -> tuple[list[Operation], int]:
    """Returns segments back to back, of each stream in turn; and the octets of an FPDU.

    Kinds: ``tagged`` and ``untagged`` segments of messages that do not end, and ``message`` for
    messages of one segment.
    """
    octets = config.octets
    stride = -(-payload // octets) * octets
    each = -(-SEGMENTS // len(numbers)) * stride  # octets of memory per stream
    host = Tables(config)
    host.set_stag(0x501, Access.REMOTE_WRITE, to=0, length=1 << 20, address=0, pd=PD)
    for at, number in enumerate(numbers):
        host.set_stream(number, pd=PD, crc=True)
        host.open_queue(number, 1)
        host.post_buffer(number, 1, 1, address=at * each, length=each, cookie=0)
    senders = [MpaSender() for _ in numbers]
    packets: list[Operation] = []
    for segment in range(SEGMENTS):
        turn, at = divmod(segment, len(numbers))
        octets_of = bytes([segment & 0xFF]) * payload
        if kind == "untagged":
            ddp = untagged(octets_of, qn=1, mo=turn * stride, last=False)
        else:
            ddp = tagged(0x501, at * each + turn * stride, octets_of, last=kind == "message")
        position = senders[at].position & 0xFFFFFFFF
        packets.append(Packet(numbers[at], position, senders[at].send(ddp)))
    last = packets[-1]
    assert isinstance(last, Packet)
    return [*host.operations, Drain(), *packets], len(last.octets)


@pytest.mark.parametrize("kind", ["tagged", "untagged", "message"])
@pytest.mark.parametrize("count", [64, 1], ids=["every-other-stream", "same-stream"])
@pytest.mark.parametrize("streams", [RnicConfig.streams, *long(1024)])
@pytest.mark.parametrize("width", [64, *long(512)])
def test_a_segment_takes_its_beats_whatever_stream_it_is_of(
    width: int, streams: int, count: int, kind: str
) -> None:
    config = replace(device_of(width), streams=streams)
    numbers = [0, streams - 1, *random.Random(8).sample(range(1, streams - 1), 62)][:count]
    ring = Ring(1 << 20, 10)
    for payload in (1, 60, 64, 300, 1440):
        operations, fpdu = load_of(config, numbers, payload, kind)
        beats_out = -(-payload // config.octets)
        memory = np.zeros(ring.octets.stop, np.uint8)
        outcome = load("compiled").run(
            config, [*ring.program(), *operations], memory,
            ring=ring, stalls=Stalls(response_latency=1),
        )  # fmt: skip
        assert outcome.counters["PLACED_SEGMENTS"] == SEGMENTS and not outcome.events
        assert memory[: ring.address].any(axis=0)
        limit = max(-(-fpdu // config.octets), beats_out)
        if kind == "message":
            limit = max(limit, OCTETS // config.octets)
            cycles = outcome.delivered
            assert [each.stream for each in outcome.completions] == [
                numbers[segment % count] for segment in range(SEGMENTS)
            ]
        else:
            cycles = outcome.writes["cycle"][::beats_out]
        assert len(cycles) == SEGMENTS
        begin = SEGMENTS // 4
        took = int(cycles[-1] - cycles[begin]) / (SEGMENTS - 1 - begin)
        assert limit <= took < limit * 1.01, f"payload {payload}: {took} cycles, not {limit}"


# -- overload -------------------------------------------------------------------------------------

RING = Ring(0xF000, 7)
#: Most cycles from the time of a completion to its interrupt: the queues are checked in turn.
CALLED = 90
STAG = 0x0000_0501
MASKED = operations_of(commands.mask_interrupts(event=True, completion=True))


class Peers:
    """Sends on streams 0 to 63 in one Protection Domain, to a region of 32 KiB at address 0."""

    def __init__(self) -> None:
        self.senders = [MpaSender() for _ in range(64)]
        region = commands.set_stag(
            STAG, Access.REMOTE_WRITE, to=0, length=1 << 15, address=0, pd=PD
        )
        self.setup: list[Operation] = [*MASKED, *operations_of(region)]
        for number in range(64):
            self.setup += self.enable(number)

    def enable(self, number: int) -> list[WriteRegister | Poll]:
        return operations_of(commands.set_stream(number, pd=PD, crc=True))

    def packet(self, number: int, segment: bytes) -> Packet:
        position = self.senders[number].position & 0xFFFFFFFF
        return Packet(number, position, self.senders[number].send(segment))

    def good(self, number: int, to: int, payload: bytes, *, last: bool = True) -> Packet:
        return self.packet(number, tagged(STAG, to, payload, last=last, rsvdulp=number))

    def bad(self, number: int, payload: bytes = b"bad") -> Packet:
        """Returns a packet that raises an error."""
        return self.packet(number, tagged(STAG ^ 1, 0, payload))

    def run(
        self, *operations: Operation, width: int, stalls: Stalls = UNSTALLED, ring: Ring = RING,
        setup: Sequence[Operation] = (), faults: Sequence[range] = (),
    ) -> tuple[Outcome, np.ndarray]:  # fmt: skip
        memory = np.full(1 << 16, 0xEE, np.uint8)
        outcome = load("compiled").run(
            device_of(width), [*ring.program(), *self.setup, *setup, *operations], memory,
            ring=ring, stalls=stalls, faults=faults,
        )  # fmt: skip
        return outcome, memory


def moderated(count: int, timeout: int) -> list[WriteRegister | Poll]:
    """Returns operations after which completions alone interrupt, moderated."""
    return operations_of(
        (*commands.mask_interrupts(event=True), *commands.moderate(count, timeout))
    )


def counted(name: str, count: int) -> Poll:
    """Returns an operation that waits until a counter has reached ``count``."""
    return Poll(regs.address(name), 0xFFFFFFFF, count)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_event_is_lost_and_no_stream_waits_while_nobody_takes_any(width: int) -> None:
    # RFC 5041 section 7.1: an error is reported; and it must not affect the other streams.
    peers = Peers()
    erring = [number for number in range(64) if number != BYSTANDER]
    operations: list[Operation] = []
    for turn, number in enumerate(erring):
        operations += [
            peers.good(number, 64 * turn, b"before"),
            peers.bad(number),
            peers.good(number, 64 * turn, b"silence"),
            peers.good(BYSTANDER, 64 * turn + 32, b"good", last=False),
        ]
    # Completions are taken; events are not, before this is over.
    outcome, memory = peers.run(
        *operations, counted("PLACED_SEGMENTS", 2 * 63), until(idle=1, event=1), width=width
    )
    assert outcome.responses.max() < outcome.polled[1]
    assert errors(outcome) == [(number, INVALID_STAG) for number in erring]
    assert len(outcome.completions) == 63 and outcome.counters["DROPPED"] == 63
    for turn in range(63):
        assert memory[64 * turn :][:8].tobytes() == b"before\xee\xee"
        assert memory[64 * turn + 32 :][:8].tobytes() == b"good\xee\xee\xee\xee"


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stream_that_is_set_up_anew_stays_in_error_until_its_event_is_read(width: int) -> None:
    # Every stream is set up anew again and again. No event is read at first: each stream has one,
    # and STATUS says that it stays in error. Then the host reads them, and each stream starts.
    peers = Peers()
    times = 5
    operations: list[Operation] = []
    for turn in range(times):
        for number in range(64):
            operations += [peers.bad(number), until(idle=1), *peers.enable(number)]
            operations += [until(clearing=0, uncleared=1), peers.good(number, 8 * number, b"no")]
        operations.append(counted("DROPPED", 64 * (2 * turn + 1)))
    operations.append(Drain())
    for number in range(64):
        operations += [*peers.enable(number), until(clearing=0, uncleared=0)]
        operations += [peers.good(number, 8 * number, b"yes"), peers.bad(number)]
    outcome, memory = peers.run(*operations, width=width)
    assert errors(outcome) == 2 * [(number, INVALID_STAG) for number in range(64)]
    assert outcome.counters["DROPPED"] == 64 * (2 * times - 1)
    assert outcome.counters["ERRORS"] == 2 * 64
    for number in range(64):
        assert memory[8 * number :][:8].tobytes() == b"yes" + b"\xee" * 5


EVENT = until(event=1), WriteRegister(regs.address("EVENT_POP"), 1)


@pytest.mark.parametrize("width", [64, *long(512)])
def test_a_message_of_a_stopped_stream_is_not_reported_once_the_stream_starts_anew(
    width: int,
) -> None:
    """RFC 5041 section 5.4: a message is delivered only if all of its segments "have been Placed".

    The bus refuses the first segment of a message. The host sees that, stops the stream and starts
    it anew, while the bus has not yet answered for the other segments.
    """
    for seed in range(8):
        peers = Peers()
        begin, *rest = (
            peers.good(VICTIM, 64 * part, bytes(range(64)), last=part == 6) for part in range(7)
        )
        outcome, _ = peers.run(
            replace(begin, octets=b"".join(each.octets for each in (begin, *rest))),
            counted("ERRORS", 1), *operations_of(commands.revoke_stream(VICTIM)), *EVENT,
            *peers.enable(VICTIM), peers.good(VICTIM, 512, b"next"),
            width=width, stalls=Stalls(response=0.99, seed=seed), faults=[range(64)],
        )  # fmt: skip
        statuses = [(each.status, each.cookie) for each in outcome.completions]
        assert statuses in (
            [(Status.NOT_PLACED, 0), (Status.DELIVERED, 512)],
            [(Status.DELIVERED, 512)],
        )
        assert not outcome.events


@pytest.mark.parametrize("width", [64, *long(512)])
def test_messages_after_one_that_was_dropped_are_not_reported_once_the_stream_starts_anew(
    width: int,
) -> None:
    """RFC 5041 section 5.4: "each preceding DDP Message has been Delivered to the ULP".

    The third message finds no room in its queue. Those after it are placed, but wait for a long
    time for the segments of another stream, each of which overtakes a message.
    """
    peers = Peers()
    slow = [tagged(STAG, 1024, b"slow", last=False, rsvdulp=number % 2) for number in range(120)]
    packets = [peers.packet(BYSTANDER, segment) for segment in slow]
    packets += [peers.good(VICTIM, 8 * part, b"message") for part in range(3)]
    packets += [peers.packet(BYSTANDER, segment) for segment in slow]
    packets += [peers.good(VICTIM, 8 * part, b"message") for part in range(3, 8)]
    outcome, _ = peers.run(
        Pause(), *packets, counted("ERRORS", 1), Resume(), Await(2),
        *operations_of(commands.revoke_stream(VICTIM)), *EVENT,
        *peers.enable(VICTIM), peers.good(VICTIM, 512, b"next"),
        width=width, ring=Ring(0xF000, 1),
    )  # fmt: skip
    assert outcome.counters["PLACED_SEGMENTS"] == len(packets) + 1
    assert [each.cookie for each in outcome.completions] == [0, 8, 512]
    assert not outcome.events


@pytest.mark.parametrize("erring", [1, 63], ids=["one-stream", "all-others"])
@pytest.mark.parametrize("width", [64, *long(512)])
def test_a_stream_keeps_its_throughput_while_others_err_and_no_one_reads_events(
    width: int, erring: int
) -> None:
    # The others flood the RNIC with errors, while the host sets them up anew without a break. They
    # take their own beats of the port, and not one in a hundred more.
    others = [number for number in range(64) if number != BYSTANDER][:erring]
    count, payload = 512, 256

    def play(*, alone: bool) -> tuple[Outcome, int]:
        peers = Peers()
        resets = [step for number in others for step in peers.enable(number)] * (256 // erring)
        operations: list[Operation] = [] if alone else [Meanwhile(0, tuple(resets))]
        beats = 0
        for turn in range(count):
            if not alone:
                bad = peers.bad(others[turn % erring])
                beats = -(-len(bad.octets) * 8 // width)
                operations.append(bad)
            to = turn * payload % (1 << 15)
            operations.append(peers.good(BYSTANDER, to, bytes(payload), last=False))
        outcome, _ = peers.run(*operations, width=width, stalls=Stalls(response_latency=1))
        cycles = outcome.writes["cycle"][:: 8 * payload // width]
        assert len(cycles) == count
        return outcome, int(cycles[-1] - cycles[count // 4]) - beats * (count - 1 - count // 4)

    _, before = play(alone=True)
    outcome, took = play(alone=False)
    assert before <= took < before * 1.01, f"{took} cycles, {before} alone"
    # A segment that meets its stream while that is set up is dropped, and the next one errs.
    assert sorted(errors(outcome)) == [(number, INVALID_STAG) for number in others]
    assert outcome.counters["ERRORS"] == erring
    assert outcome.counters["DROPPED"] == count - erring


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stream_that_overruns_its_queue_ends_alone(width: int) -> None:
    # More messages of one stream than its queue holds, and then segments of another.
    peers = Peers()
    count = RING.entries + 200
    operations: list[Operation] = [Pause()]
    operations += [peers.good(VICTIM, k % 256, bytes([k & 255])) for k in range(count)]
    operations += [peers.good(BYSTANDER, 512 * k, bytes(500), last=False) for k in range(1, 60)]
    operations += [Drain(), until(idle=1), Resume()]
    outcome, memory = peers.run(*operations, width=width)
    resumed = int(outcome.polled[-1])
    assert outcome.responses.max() < resumed
    assert np.sum(outcome.delivered < resumed) == RING.entries == len(outcome.completions)
    assert {each.stream for each in outcome.completions} == {VICTIM}
    assert errors(outcome) == [(VICTIM, QUEUE_OVERRUN)]
    placed, dropped = (outcome.counters[name] for name in ("PLACED_SEGMENTS", "DROPPED"))
    assert placed + dropped == count + 59 and placed > RING.entries + 59
    assert not memory[512 : 512 * 60].reshape(59, 512)[:, :500].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_slow_host_gets_completions_in_order_and_once(width: int) -> None:
    # As many messages as the ring holds, of all streams, and a host that is slow to take them.
    peers = Peers()
    numbers = random.Random(9).choices(range(64), k=1000)
    packets = [peers.good(number, 4 * k, bytes([k & 255])) for k, number in enumerate(numbers)]
    outcome, memory = peers.run(
        *packets, width=width, stalls=Stalls(completions=0.97, response=0.3),
        ring=Ring(1 << 15, 10),
    )  # fmt: skip
    assert [(each.stream, each.rsvdulp) for each in outcome.completions] == [
        (number, number) for number in numbers
    ]
    assert memory[: 4 * 1000 : 4].tolist() == [k & 255 for k in range(1000)]


@pytest.mark.parametrize("width", WIDTHS)
def test_too_many_exceptions_are_dropped_whole_and_hold_nothing_up(width: int) -> None:
    def play(stalls: Stalls) -> tuple[Outcome, list[Packet], list[Packet]]:
        peers = Peers()
        rng = random.Random(10)
        bad, good = [], []
        operations: list[Operation] = []
        for number in range(64):
            if number == BYSTANDER:
                continue
            bad.append(peers.bad(number, rng.randbytes(rng.choice((1, 700, 1400, 9000)))))
            good.append(peers.good(BYSTANDER, 512 * number, rng.randbytes(300), last=False))
            operations += [bad[-1], good[-1]]
        setup = operations_of(commands.mask_interrupts(completion=True))
        outcome, memory = peers.run(
            *operations, counted("PLACED_SEGMENTS", 63), width=width, stalls=stalls, setup=setup
        )
        for packet, number in zip(good, (n for n in range(64) if n != BYSTANDER), strict=True):
            assert memory[512 * number :][:300].tobytes() == packet.octets[16:316]
        return outcome, bad, good

    free, bad, good = play(Stalls(exceptions=0.0))
    slow, *_ = play(Stalls(exceptions=0.99))
    # Packets that arrived are whole, and the rest is counted.
    whole = [ExceptionPacket(each.stream, each.sequence, each.octets, 0x100) for each in bad]
    assert [each for each in whole if each in slow.exceptions] == slow.exceptions
    dropped = slow.counters["EXCEPTIONS_DROPPED"]
    assert len(slow.exceptions) + dropped == slow.counters["EXCEPTIONS"] == 63 and dropped > 20
    # Placement is not affected.
    assert np.array_equal(slow.writes, free.writes) and slow.cycles > free.cycles
    assert errors(slow) == errors(free) == [(each.stream, INVALID_STAG) for each in bad]


# -- interrupts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [(), ("event",), ("completion",), ("event", "completion")])
@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_masked_shows_in_status_and_does_not_interrupt(
    width: int, masked: tuple[str, ...]
) -> None:
    peers = Peers()
    mask = commands.mask_interrupts(**dict.fromkeys(masked, True))
    outcome, _ = peers.run(
        Pause(),
        *(peers.good(VICTIM, k, b"x") for k in range(3)),
        Wait(400),
        until(completion=0, idle=1),
        peers.good(VICTIM, 3, b"x"),
        until(completion=1, event=0),
        Wait(400),
        peers.bad(VICTIM),
        Wait(400),
        # A host that is interrupted for completions sees the event too.
        until(completion=1, event=int(len(masked) == 2)),
        Resume(),
        Drain(),
        until(completion=0, event=0),
        width=width,
        setup=operations_of((*mask, *commands.moderate(4, 1 << 31))),
    )  # fmt: skip
    assert len(outcome.completions) == 4 and errors(outcome) == [(VICTIM, INVALID_STAG)]
    fourth, before, told = int(outcome.delivered[3]), *outcome.polled[:2].astype(int)
    assert before < fourth < told < fourth + CALLED
    interrupts = outcome.interrupts.astype(int).tolist()
    # One interrupt: for completions, which stay while the event comes, or for the event.
    assert len(interrupts) == (len(masked) < 2)
    if interrupts:
        assert (interrupts[0] < fourth + CALLED) == ("completion" not in masked)
        assert interrupts[0] > fourth


@pytest.mark.parametrize("timeout", [0, 1, 100, 2000])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_oldest_completion_calls_when_its_time_is_over(width: int, timeout: int) -> None:
    # Two with one time-out, then one alone, whose time-out begins with it.
    peers = Peers()
    outcome, _ = peers.run(
        peers.good(VICTIM, 0, b"x"),
        Wait(timeout // 2),
        peers.good(VICTIM, 1, b"x"),
        Wait(timeout + 500),
        peers.good(VICTIM, 2, b"x"),
        Wait(timeout + 500),
        width=width,
        setup=moderated(3, timeout),
        ring=Ring(RING.address, 6),
    )
    assert len(outcome.completions) == 3
    first, _, third = outcome.delivered.astype(int).tolist()
    interrupts = outcome.interrupts.astype(int).tolist()
    assert 0 <= interrupts[0] - first - timeout < CALLED
    assert 0 <= interrupts[-1] - third - timeout < CALLED
    # With a short time-out, the second completion may raise an interrupt of its own.
    assert len(interrupts) == 2 or (timeout < 100 and len(interrupts) == 3)


@pytest.mark.parametrize("coalesce", [0, 1, 2, 4])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_number_of_completions_calls(width: int, coalesce: int) -> None:
    peers = Peers()
    operations: list[Operation] = []
    for k in range(8):
        operations += [peers.good(VICTIM, k, b"x"), Wait(300)]
    outcome, _ = peers.run(
        *operations,
        width=width,
        setup=moderated(coalesce, 1 << 31),
        ring=Ring(RING.address, 6),
    )  # fmt: skip
    step = max(coalesce, 1)
    assert len(outcome.interrupts) == 8 // step
    calling = outcome.delivered.astype(int)[step - 1 :: step]
    late = outcome.interrupts.astype(int) - calling
    assert late.min() >= 0 and late.max() < CALLED
