"""Tests the proofs that the segments of a stream are cut in order, and leave in that order."""

import pytest
from ddp_rnic.hdl.proofs.credit import Anything, Costs, Row
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.order import AnyAccounts, InSequence, InTurn
from ddp_rnic.hdl.proofs.sent import Entry
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction


def table(shape, depth, **options):
    """Returns the table of MSNs as one of its rows, and any other table as one that shows
    anything.
    """
    return (Row if shape == 32 else Anything)(shape, depth, **options)


def in_turn(old="", new="", **options):
    cutter = planted("send.segmenter", old, new, ForwardedTable=table, CreditAccounts=AnyAccounts)
    return InTurn(cutter.Cutter(64, 2), **options)


def in_sequence(old="", new="", **options):
    departure = planted("send.departure", old, new, StepTable=Entry, FpduLength=Costs)
    return InSequence(departure.Departure(64, 2), **options)


@pytest.mark.long
@pytest.mark.parametrize("harness", [in_turn, in_sequence])
def test_segments_are_cut_and_leave_in_order(harness):
    rules = harness()
    proof = induction(rules, depth=rules.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@pytest.mark.parametrize("harness", [in_turn, in_sequence])
def test_all_kinds_of_segments_are_reached(harness):
    proof = covers(harness(lemmas=False), depth=14)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("carry.eq(low[32] & now.tagged)", "carry.eq(0)"),
    ("(ends | ~may | ~fits)", "(ends | ~fits)"),
    ("own.eq(sent & ~now.tagged", "own.eq(cuts & ~now.tagged"),
    ("Mux(stops, sent, 0)", "Mux(stops, now.done, 0)"),
    ("Mux(finished, all_entries, earlier)", "all_entries"),
    ("ends.eq(beyond[-1] |", "ends.eq((beyond < 8) |"),
    ids=["carry", "stop", "MSN", "done", "entries", "MULPDU"],
)
def test_segments_that_are_cut_wrongly_are_caught(old, new):
    proof = bounded(in_turn(old, new, lemmas=False), depth=9)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("written.open.eq(state.open & ~closes)", "written.open.eq(state.open)"),
    ("written.sequence.eq(Mux(leaves & ~again", "written.sequence.eq(Mux(leaves"),
    ("(state.open | again) & ~wrong", "(state.open | again)"),
    ("passes.eq(leaves)", "passes.eq(state.open)"),
    ("Mux(again, repeat.sequence", "Mux(again, state.sequence"),
    ids=["closed", "sequence", "not read", "packet", "again"],
)
def test_segments_that_leave_wrongly_are_caught(old, new):
    proof = bounded(in_sequence(old, new, lemmas=False), depth=9)
    assert proof.status == "FAIL", proof.log
