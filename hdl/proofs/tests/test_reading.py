"""Tests the proofs that after a revocation reads done nothing of the region is read."""

import pytest
from ddp_rnic.hdl.bus.axi import AxiRead
from ddp_rnic.hdl.dma.pages import PageCut
from ddp_rnic.hdl.dma.read import ReadBursts, ReadFence
from ddp_rnic.hdl.dma.staging import BeatPlacer
from ddp_rnic.hdl.proofs.cuts import CONFIG
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.parts import AnyCheck
from ddp_rnic.hdl.proofs.reading import (
    SHAPE,
    BusyCut,
    Checking,
    Cutting,
    Drained,
    Finished,
    Issued,
    Owned,
    Returned,
)
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction
from ddp_rnic.hdl.send.checks import _Read
from ddp_rnic.hdl.send.fence import SendFence

BEAT = AxiRead(SHAPE.width, SHAPE.reads).create().r.payload.shape()


def checks(old="", new=""):
    """Returns the checks of parts, or a copy with a bug, before any cutter."""
    return planted(
        "send.checks", old, new, TaggedCheck=AnyCheck, PageCut=BusyCut).PartCheck(CONFIG)


@pytest.mark.parametrize(
    "harness, block, depth",
    [
        (Finished, SendFence, 1),
        (Checking, checks, Checking.DEPTH),
        (Cutting, lambda: PageCut(CONFIG, _Read()), 1),
        (Drained, lambda: ReadFence(SHAPE), 1),
        (Issued, lambda: ReadBursts(SHAPE), Issued.DEPTH),
        (Owned, lambda: ReadBursts(SHAPE), 1),
        (Returned, lambda: BeatPlacer(SHAPE, BEAT), Returned.DEPTH),
    ],
    ids=["fence", "checks", "cutter", "engine", "bursts", "IDs", "beats"],
)
def test_a_fence_waits_for_all_that_was_looked_up(harness, block, depth):
    proof = induction(harness(block()), depth=depth)
    assert proof.status == "PASS", proof.log
    proof = covers(harness(block(), lemmas=False), depth=28)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("settled.all() & ~self.checking", "settled.all()"),
    ("waits | self.reading", "waits"),
    ("waits | self.reading", "self.reading"),
    ("waits.eq(1), settled.eq(0)", "waits.eq(~waits), settled.eq(0)"),
    ids=["checking", "reading", "waits", "second fence"],
)
def test_a_fence_that_ends_too_soon_is_caught(old, new):
    bug = planted("send.fence", old, new)
    proof = bounded(Finished(bug.SendFence(), lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("takes | coming.any()", "coming.any()"),
    ("coming.any() | quick", "coming.any()"),
    ("checked.o.valid | m.submodules.cut.busy", "m.submodules.cut.busy"),
    ("checked.o.valid | m.submodules.cut.busy", "checked.o.valid"),
    ("| m.submodules.pieces.o.valid)", ")"),
    ids=["taken", "quick", "checked", "cut", "leaves"],
)
def test_checks_that_are_idle_too_soon_are_caught(old, new):
    proof = bounded(Checking(checks(old, new), lemmas=False), depth=20)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("self.i.valid | measure.busy", "measure.busy"),
    ("| jobs.o.valid | sequencer.busy |", "| jobs.o.valid |"),
    ("coming.any()\n            | pieces.o.valid)", "coming.any())"),
    ids=["input", "cut", "output"],
)
def test_a_cutter_that_is_idle_too_soon_is_caught(old, new):
    bug = planted("dma.pages", old, new)
    proof = bounded(Cutting(bug.PageCut(CONFIG, _Read()), lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("~pieces.any() & ~bursts.any()", "~pieces.any()"),
    ("again.eq(wanted & ~starts)", "again.eq(0)"),
    ("BeatPlacer.ANSWERED + 1), name", "1), name"),
    ("self.taken & mine", "self.taken & ~mine"),
    ids=["bursts", "second fence", "wraps", "epoch"],
)
def test_a_fence_of_the_engine_that_ends_too_soon_is_caught(old, new):
    bug = planted("dma.read", old, new)
    proof = bounded(Drained(bug.ReadFence(SHAPE), lemmas=False), depth=20)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("body1.epoch.eq(self.epoch)", "body2.epoch.eq(self.epoch)"),
    ("burst1.epoch.eq(body.epoch)", "burst1.epoch.eq(self.epoch)"),
    ("self.done.valid.eq(sequencer.valid & sequencer.last)", "self.done.valid.eq(issues)"),
    ids=["piece", "burst", "done"],
)
def test_a_burst_of_another_epoch_is_caught(old, new):
    bug = planted("dma.read", old, new)
    proof = bounded(Issued(bug.ReadBursts(SHAPE), lemmas=False), depth=12)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("credits.take.eq(issues)", "credits.take.eq(issues & sequencer.last)"),
    ("free.o.ready.eq(issues & old)", "free.o.ready.eq(0)"),
    ("old.eq(fresh == shape.reads - 1)", "old.eq(0)"),
    ids=["credit", "twice", "counter"],
)
def test_an_id_that_two_bursts_have_is_caught(old, new):
    bug = planted("dma.read", old, new)
    proof = bounded(Owned(bug.ReadBursts(SHAPE), lemmas=False), depth=20)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ('answered - 1, burst1.epoch, "epoch")', 'answered - 2, burst1.epoch, "epoch")'),
    ('valid[answered - 1] & delayed(m, answered - 2, last2, "last")', "valid[answered - 1]"),
    ids=["another one", "each beat"],
)
def test_an_answer_of_another_burst_is_caught(old, new):
    bug = planted("dma.staging", old, new)
    proof = bounded(Returned(bug.BeatPlacer(SHAPE, BEAT), lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log
