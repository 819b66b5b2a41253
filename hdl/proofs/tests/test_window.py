"""Tests the proofs that the next item of a stream is taken, whatever other streams do."""

import pytest
from ddp_rnic.hdl.ddp.item import Verdict
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers
from ddp_rnic.hdl.proofs.window import Taken
from ddp_rnic.hdl.sctp.window import Window

SIZE = {"streams": 2, "window": 4}


@pytest.mark.parametrize("depth", [12, *long(Taken.DEPTH)])
def test_the_next_ddp_ssn_of_a_stream_is_taken(depth):
    proof = bounded(Taken(Window(**SIZE)), depth=depth)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_gaps_are_filled_and_each_slot_is_used_again():
    proof = covers(Taken(Window(**SIZE)), depth=Taken.LONG)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_the_next_ddp_ssn_of_a_stream_is_taken_while_gaps_are_filled():
    proof = bounded(Taken(Window(**SIZE)), depth=Taken.LONG, timeout=1200)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@bugs(
    "old, new",
    ("~distance[bits:].any() | (distance == self.window)", "1"),
    ("return Cat(ssn[:exact_log2(window)], stream)", "return Cat(ssn[:exact_log2(window)])"),
    ("asked.missing[k] & (count == k)", "asked.missing[k] & (count == 0)"),
    ('some(in_order, "inside") | passed_by)', 'some(in_order, "inside"))'),
    ids=["inside", "stream", "count", "passed by"],
)
def test_a_window_that_errs_is_caught(old, new):
    bug = planted("sctp.window", old, new, Verdict=Verdict)
    proof = bounded(Taken(bug.Window(**SIZE)), depth=Taken.LONG, timeout=1200)
    assert proof.status == "FAIL", proof.log
