"""Tests the proof that no stream waits for credit of its association that is there."""

import pytest
from ddp_rnic.hdl.proofs.associations import Front
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers

SIZES = 2, 2
WAKES = "(raises | moves | (appends & ~queue.some))"


@pytest.mark.long
def test_the_first_stream_of_a_queue_is_woken_after_each_change():
    proof = bounded(Front(planted("send.associations").AssociationQueues(*SIZES)),
                    depth=Front.DEPTH)  # fmt: skip
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_queues_of_two_streams_are_reached():
    proof = covers(Front(planted("send.associations").AssociationQueues(*SIZES)), depth=70)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@bugs(
    "old, new",
    (WAKES, "(raises | moves)"),
    (WAKES, "(moves | (appends & ~queue.some))"),
    ("marks.write.payload.data.listed.eq(joins)", "marks.write.payload.data.listed.eq(1)"),
    ("becomes.some.eq(~alone)", "becomes.some.eq(1)"),
    ids=["joins", "credit", "mark", "alone"],
)
def test_a_queue_that_loses_a_stream_is_caught(old, new):
    bug = planted("send.associations", old, new)
    proof = bounded(Front(bug.AssociationQueues(*SIZES)), depth=Front.DEPTH)
    assert proof.status == "FAIL", proof.log
