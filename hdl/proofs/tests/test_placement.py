"""Tests the proofs that nothing is written outside the region that a segment may write to."""

import pytest
from ddp_rnic.hdl.ddp.stag import StagEntry
from ddp_rnic.hdl.ddp.untagged import UntaggedCheck
from ddp_rnic.hdl.dma.jobs import JobMaker, Placement
from ddp_rnic.hdl.dma.pages import PageCut
from ddp_rnic.hdl.dma.placement import PlacementDma
from ddp_rnic.hdl.dma.slots import Align
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.mpa.markers import MarkerCut
from ddp_rnic.hdl.proofs import bursts, cuts, untagged
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tagged import CheckedTable, Inbounds
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction
from ddp_rnic.hdl.send.runs import Runs

LONG = pytest.mark.long

#: The layout of a placement of the receiving side.
PLACEMENT = cuts.Marked(Placement(cuts.CONFIG))


def test_a_tagged_segment_is_placed_inside_the_region_of_its_stag():
    proof = induction(Inbounds(CheckedTable()))
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("alive.eq(entry.valid)", "alive.eq(1)"),
    ("past.eq(room_low[:16] < ", "past.eq(room_low[:16] + 1 < "),
    ('negative.eq(~(after(2, above, "above") & room_high[32])', "negative.eq(~(room_high[32])"),
    ("forbidden.eq(~allowed)", "forbidden.eq(0)"),
    ("~Mux(bound, stream_equal, pd)", "~Mux(bound, pd, stream_equal)"),
    ("Cat(entry.key, entry.tag), ", "Cat(stag[:8], entry.tag), "),
    ids=["valid", "length", "below", "rights", "owner", "key"],
)
def test_a_check_that_is_not_made_is_caught(old, new):
    bug = planted("ddp.tagged", old, new)
    proof = bounded(Inbounds(CheckedTable(check=bug.TaggedCheck), lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log


@LONG
def test_an_entry_that_is_seen_while_it_is_replaced_is_caught():
    bug = planted("lib.table", "            (write.valid, write.payload.address),\n", "")

    def stags(entries):
        return bug.Table(StagEntry(entries), entries, live="valid")

    proof = bounded(Inbounds(CheckedTable(table=stags), lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log


# The first segment can be placed in cycle 14.
@pytest.mark.parametrize("depth", [15, *long(untagged.Inbuffer.DEPTH)])
def test_an_untagged_segment_is_placed_inside_a_posted_buffer(depth):
    component = UntaggedCheck(untagged.CONFIG)
    proof = bounded(untagged.Inbuffer(component), depth=depth, timeout=1800)
    assert proof.status == "PASS", proof.log


@LONG
def test_a_message_too_long_for_its_buffer_is_caught():
    bug = planted("ddp.untagged", "rest.eq(buffer.length - end)", "rest.eq(buffer.length)")
    component = bug.UntaggedCheck(untagged.CONFIG)
    proof = bounded(untagged.Inbuffer(component), depth=untagged.Inbuffer.DEPTH)
    assert proof.status == "FAIL", proof.log


def test_the_parts_between_markers_are_the_placement():
    proof = induction(cuts.MarkerParts(MarkerCut(cuts.CONFIG)))
    assert proof.status == "PASS", proof.log
    proof = covers(cuts.MarkerParts(MarkerCut(cuts.CONFIG), lemmas=False), depth=16)
    assert proof.status == "PASS", proof.log


def test_the_runs_of_a_turn_are_its_entries():
    proof = induction(cuts.RingRuns(Runs()), depth=2)
    assert proof.status == "PASS", proof.log
    proof = covers(cuts.RingRuns(Runs(), lemmas=False), depth=12)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("(span.size > k) & ", ""),
    ("& ~span.base[:k + 1].any() for", "for"),
    ("(~index[:exact_log2(RUN)] & inner) + 1", "inner + 1"),
    ("left < most, left, most", "left < most, most, most"),
    ("run.last.eq(left <= most)", "run.last.eq(left < most)"),
    ("index + run.count", "index + RUN"),
    ("left - run.count", "left"),
    ("first.eq(run.last)", "first.eq(0)"),
    ("Mux(first, span.start,", "Mux(first, span.start - 1,"),
    ids=["small ring", "base", "ring", "count", "last", "after", "left", "next", "index"],
)
def test_a_run_of_other_entries_is_caught(old, new):
    bug = planted("send.runs", old, new)
    proof = bounded(cuts.RingRuns(bug.Runs(), lemmas=False), depth=12)
    assert proof.status == "FAIL", proof.log


def test_a_part_that_overlaps_is_caught():
    bug = planted(
        "mpa.markers", "next_length.eq(rest.length - gap)", "next_length.eq(rest.length - gap + 4)"
    )
    proof = bounded(cuts.MarkerParts(bug.MarkerCut(cuts.CONFIG), lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log


@pytest.mark.parametrize("depth", [13, *long(cuts.PageParts.DEPTH)])
def test_the_pieces_in_pages_are_the_placement(depth):
    proof = bounded(cuts.PageParts(PageCut(cuts.CONFIG, PLACEMENT)), depth=depth)
    assert proof.status == "PASS", proof.log


@LONG
def test_pieces_in_pages_are_reached():
    harness = cuts.PageParts
    proof = covers(harness(PageCut(cuts.CONFIG, PLACEMENT)), depth=harness.DEPTH)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("Mux(sequencer.first, whole.address, 0)", "whole.address"),
    ("body.slot + sequencer.index", "body.slot"),
    ("Mux(sequencer.last, body.final, body.page)", "body.page"),
    ids=["offset", "slot", "length"],
)
def test_a_piece_in_the_wrong_place_is_caught(old, new):
    bug = planted("dma.pages", old, new)
    harness = cuts.PageParts(bug.PageCut(cuts.CONFIG, PLACEMENT), lemmas=False)
    proof = bounded(harness, depth=harness.DEPTH)
    assert proof.status == "FAIL", proof.log


def jobs(maker=JobMaker):
    return bursts.Jobs(maker(bursts.CONFIG))


def test_a_placement_becomes_the_jobs_that_cover_it():
    proof = induction(jobs(), depth=bursts.Jobs.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(jobs(), depth=8)
    assert proof.status == "PASS", proof.log


def test_a_job_that_is_too_long_is_caught():
    bug = planted("dma.jobs", "beats[0].eq(high2 + low_out2[-1])", "beats[0].eq(high2 + 1)")
    proof = bounded(jobs(bug.JobMaker), depth=8)
    assert proof.status == "FAIL", proof.log


def test_bursts_cover_the_placement_and_do_not_cross_4_kib():
    proof = induction(bursts.Bursts(bursts.addresses()), depth=2)
    assert proof.status == "PASS", proof.log
    proof = covers(bursts.Bursts(bursts.addresses(), lemmas=False), depth=10)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("body.page[:half] + sequencer.index", "body.page[:half]"),
    ("Mux(sequencer.first, body.position, 0)", "body.position"),
    ("Mux(sequencer.last, body.final, (1 << geometry.burst) - 1)", "(1 << geometry.burst) - 1"),
    ids=["page", "position", "length"],
)
def test_a_burst_outside_the_placement_is_caught(old, new):
    bug = bursts.addresses(planted("dma.burst", old, new).Addresses)
    proof = bounded(bursts.Bursts(bug, lemmas=False), depth=8)
    assert proof.status == "FAIL", proof.log


def test_slots_are_the_beats_of_host_memory():
    proof = induction(bursts.Beats(bursts.slots()), depth=2)
    assert proof.status == "PASS", proof.log
    proof = covers(bursts.Beats(bursts.slots(), lemmas=False), depth=12)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("Mux(sequencer.first, body.first_lane, 0)", "Mux(sequencer.last, body.first_lane, 0)"),
    ("slot1.final | position1.all()", "slot1.final"),
    ("silent.eq(sequencer.last & body.silent)", "silent.eq(0)"),
    ids=["lane", "edge", "silent"],
)
def test_a_slot_with_other_lanes_is_caught(old, new):
    bug = bursts.slots(planted("dma.slots", old, new).Slots)
    proof = bounded(bursts.Beats(bug, lemmas=False), depth=12)
    assert proof.status == "FAIL", proof.log


def test_strobes_are_those_of_the_slot():
    proof = induction(bursts.Strobes(Align(bursts.CONFIG)), depth=4)
    assert proof.status == "PASS", proof.log
    proof = covers(bursts.Strobes(Align(bursts.CONFIG), lemmas=False), depth=12)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("high.i.eq(~early.high)", "high.i.eq(~early.low)"),
    ("self.o.payload.last.eq(held.edge)", "self.o.payload.last.eq(held.final)"),
    ("join.o_valid & ~held.silent", "join.o_valid"),
    ids=["strobe", "last", "silent"],
)
def test_a_beat_with_other_strobes_is_caught(old, new):
    bug = planted("dma.slots", old, new)
    proof = bounded(bursts.Strobes(bug.Align(bursts.CONFIG), lemmas=False), depth=12)
    assert proof.status == "FAIL", proof.log


def test_no_queue_of_the_placement_engine_overflows():
    proof = induction(bursts.Room(PlacementDma(bursts.CONFIG)), depth=bursts.Room.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize(
    "old, new",
    [
        ("ready.room.eq(slot_jobs.half & burst_jobs.half)", "ready.room.eq(~slot_jobs.level[4])"),
        ("OutputQueue(config.width, depth=QUEUE)", "OutputQueue(config.width, depth=4)"),
    ],
    ids=["jobs", "output_queue"],
)
@LONG
def test_a_queue_that_overflows_is_caught(old, new):
    bug = planted("dma.placement", old, new)
    proof = bounded(bursts.Room(bug.PlacementDma(bursts.CONFIG), lemmas=False), depth=28)
    assert proof.status == "FAIL", proof.log
