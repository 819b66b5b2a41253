"""Tests the proofs that Reads wait for nothing but their slots."""

import pytest
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.reads import Answering, End, Pair, Together
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers

pytestmark = pytest.mark.long


def test_no_request_waits_for_reads_and_no_read_for_a_free_slot():
    proof = bounded(Answering(End()), depth=Answering.DEPTH)
    assert proof.status == "PASS", proof.log


def test_two_peers_with_all_reads_outstanding_do_not_wait_for_each_other():
    proof = bounded(Together(Pair()), depth=Together.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize(("kind", "component"), [(Answering, End), (Together, Pair)])
def test_waiting_is_reached(kind, component):
    proof = covers(kind(component()), depth=kind.DEPTH + 24)
    assert proof.status == "PASS", proof.log


@bugs(
    "module, old, new",
    ("requester", "(op == _Op.FREE) | ", ""),
    ("requester", "found.used - found.used.any()", "found.used"),
    ids=["no wake", "no free slot"],
)
def test_peers_that_wait_for_each_other_are_caught(module, old, new):
    names = {"alternation": "send.alternation", "requester": "rdmap.requester"}
    pair = Pair(**{module: planted(names[module], old, new)})
    proof = bounded(Together(pair), depth=Together.DEPTH)
    assert proof.status == "FAIL", proof.log


@bugs(
    "module, old, new",
    ("alternation", "(answering | ~own | ~last)", "(answering | ~own)"),
    ("alternation", "Mux(slotless, asked, more)", "Mux(slotless, 0, more)"),
    ("requester", "found.used + counts", "found.used"),
    ("requester", "room.idle.eq(~account.used.any())", "room.idle.eq(1)"),
    ids=["responses wait for own Reads", "a turn without a slot is the last one",
         "no slot is taken", "no fence"],
)
def test_an_end_that_waits_for_too_much_is_caught(module, old, new):
    names = {"alternation": "send.alternation", "requester": "rdmap.requester"}
    end = End(**{module: planted(names[module], old, new)})
    proof = bounded(Answering(end), depth=Answering.DEPTH)
    assert proof.status == "FAIL", proof.log
