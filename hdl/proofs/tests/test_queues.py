"""Tests the proofs about completion queues."""

import pytest
from ddp_rnic.hdl.ddp.room import QueueRoom
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.queues import CONFIG, AnyRoom, Flowing, Placed
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers


# The first completion has its slot in cycle 6.
@pytest.mark.parametrize("depth", [9, *long(Placed.DEPTH)])
def test_each_completion_goes_to_the_next_place_of_its_queue_if_there_is_room(depth):
    proof = bounded(Placed(QueueRoom(CONFIG)), depth=depth)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_a_queue_goes_round_and_a_stream_overruns():
    proof = covers(Placed(QueueRoom(CONFIG)), depth=Placed.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@bugs(
    "module, old, new",
    ("lib.counts", "self.add & second", "0"),
    ("lib.counts", "fourth & added[1]", "0"),
    ("lib.counts", "third & added[0]", "0"),
    ("ddp.room", "counts.add & counts.again", "counts.again"),
    ("ddp.room", "fits(before)", "fits(taken)"),
    ("ddp.room", "~((counts.soon - consumer)[:16] & ~Cat(mask, C(0, 1))).any()",
     "~(Cat(mask, C(0, 1)) - (counts.soon - consumer)[:16])[15]"),
    ("ddp.room", "allowed.eq(entry.enable & ~stopped)", "allowed.eq(entry.enable)"),
    ("ddp.room", "errors.ended | silent_3", "silent_3"),
    ("ddp.room", "& ~free & ~last.direct & ~silent_3", "& ~free & ~silent_3"),
    ids=["second", "fourth", "third", "again", "one more", "far", "stopped", "overrun", "owner"],
)
def test_a_queue_that_is_overrun_is_caught(module, old, new):
    bug = planted(module, old, new)
    if module == "lib.counts":
        bug = planted("ddp.room", CountTable=bug.CountTable)
    proof = bounded(Placed(bug.QueueRoom(CONFIG)), depth=Placed.DEPTH)
    assert proof.status == "FAIL", proof.log


def test_no_queue_holds_up_completions():
    right = planted("ddp.queues", QueueRoom=AnyRoom)
    proof = bounded(Flowing(right.CompletionQueues(CONFIG)), depth=Flowing.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_a_queue_overruns_beside_completions():
    right = planted("ddp.queues", QueueRoom=AnyRoom)
    proof = covers(Flowing(right.CompletionQueues(CONFIG)), depth=Flowing.DEPTH)
    assert proof.status == "PASS", proof.log


@bugs(
    "module, old, new",
    ("ddp.queues", "self.i.ready.eq(go & ~sends)", "self.i.ready.eq(go & ~room.stopped[0])"),
    ("ddp.entry_writer", "drops.eq(skid.o.valid & ~slot.written)", "drops.eq(0)"),
    ids=["stopped", "dropped"],
)
def test_a_queue_that_holds_completions_up_is_caught(module, old, new):
    bug = planted(module, old, new, QueueRoom=AnyRoom)
    if module == "ddp.entry_writer":
        bug = planted("ddp.queues", EntryWriter=bug.EntryWriter, QueueRoom=AnyRoom)
    proof = bounded(Flowing(bug.CompletionQueues(CONFIG)), depth=Flowing.DEPTH)
    assert proof.status == "FAIL", proof.log
