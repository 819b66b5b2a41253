"""Tests the proof that the scheduler loses no wake."""

import pytest
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.scheduler import Short, Woken
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers

SIZES = 16, 16


@pytest.mark.long
def test_no_wake_is_lost():
    right = planted("send.scheduler", FEW=0, Backlog=Short)
    proof = bounded(Woken(right.Scheduler(*SIZES)), depth=Woken.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_wakes_are_reached():
    right = planted("send.scheduler", FEW=0, Backlog=Short)
    proof = covers(Woken(right.Scheduler(*SIZES)), depth=Woken.DEPTH)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("now.asked ^ (~ends_2 & ~asked)", "now.asked"),
    ("Mux(ends_2, again_2 | asked, ~now.busy)", "Mux(ends_2, again_2, ~now.busy)"),
    ("Mux(same, last, Mux(", "Mux(C(0, 1), last, Mux("),
    ("Mux(same_but_one, before, ", "Mux(C(0, 1), before, "),
    ids=["asked", "end", "last", "last but one"],
)
def test_a_wake_that_is_lost_is_caught(old, new):
    bug = planted("send.scheduler", old, new, FEW=0, Backlog=Short)
    proof = bounded(Woken(bug.Scheduler(*SIZES)), depth=Woken.DEPTH)
    assert proof.status == "FAIL", proof.log
