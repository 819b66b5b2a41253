"""Tests the proofs of Reorder: sessions that end, and the order of records."""

import pytest
from amaranth.hdl import Array, Signal
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.reorder import Ended, Kept, Survives
from ddp_rnic.hdl.proofs.tests.run import bounded, induction
from ddp_rnic.hdl.sctp.order import Reorder

SMALL = {"streams": 2, "window": 4}
SIZES = pytest.mark.parametrize(
    "size", [{"streams": 64, "window": 16}, *long(SMALL)], ids=["large", "small"]
)


@SIZES
def test_a_record_that_waits_does_not_survive_its_session(size):
    proof = induction(Survives(Reorder(1, **size)), depth=2)
    assert proof.status == "PASS", proof.log


@SIZES
def test_nothing_leaves_between_two_sessions(size):
    proof = induction(Ended(Reorder(1, **size)), depth=6)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_each_item_leaves_once_and_in_its_turn():
    proof = induction(Kept(Reorder(16, **SMALL)), depth=Kept.DEPTH)
    assert proof.status == "PASS", proof.log


def scene(harness, component, *, items, ends=255, ready=1):
    """Returns the harness for a component, with inputs that reach a bug within seconds.

    The items of stream 1 have these DDP-SSNs. They come one after another, each from a cycle on.
    From cycle ``ends`` on, the stream's session is closed.
    """
    cycles, ssns = zip(*items, strict=True)

    class Scene(harness):
        def rules(self, m):
            super().rules(m)
            dut, ticket = self.dut, self.dut.i.payload.ticket
            cycle, closed, at = Signal(8), Signal(), Signal(range(len(items) + 1))
            m.d.sync += [
                cycle.eq(cycle + 1),
                closed.eq(closed | dut.close.ready),
                at.eq(at + (dut.i.valid & dut.i.ready)),
            ]
            for condition in (
                self.mine,
                dut.i.valid == ((at < len(items)) & (cycle >= Array(cycles)[at])),
                ticket.ssn == Array(ssns)[at],
                ticket.fills == Array(max(ssns[: k + 1]) > ssn for k, ssn in enumerate(ssns))[at],
                ticket.stream & ~ticket.final,
                dut.close.valid == ((cycle >= ends) & ~closed),
                dut.close.payload.stream,
                dut.close.payload.opens == (harness is Survives),
                dut.o.ready == ready,
                dut.over.ready,
            ):
                self.assume(condition)

    return Scene(component, lemmas=False)


CLOSED = {"items": [(0, 1), (24, 0)], "ends": 9}
BUGS = {
    "one slot is cleared": (Survives, "wipes & cleared.all()", "wipes", CLOSED),
    "nothing is cleared": (
        Survives, "clears.eq((probe & leaves) | step[3].close)", "clears.eq(probe & leaves)",
        CLOSED),
    "another stream is cleared": (
        Survives, "slot_of(self.close.payload.stream, cleared,",
        "slot_of(~self.close.payload.stream, cleared,", CLOSED),
    "it stays open": (Ended, "Mux(closes, ~step[4].opens, final)", "Mux(closes, 0, final)", CLOSED),
    "something is on its way": (
        Ended, "wipes.eq(closing & calm.all())", "wipes.eq(closing)",
        {"items": [(0, 0)], "ends": 1}),
    "the item just before does not count": (
        Kept, "(before & left).any() | (equal", "(equal", {"items": [(0, 0), (0, 1)]}),
    "the item just stored does not count": (
        Kept, "found | (behind & stored).any()", "found", {"items": [(0, 1), (0, 0)]}),
    "items do not wait for the walk": (
        Kept, " & ~drain.held", "", {"items": [(0, ssn) for ssn in (1, 2, 3, 0, 4, 5)]}),
    "the walk leaves an item out": (
        Kept, "self.after.eq(self.after + 1)]", "self.after.eq(self.after + 2)]",
        {"items": [(0, 3), (0, 2), (0, 1), (0, 0)]}),
    "another record is read": (
        Kept, "address[0].eq(step[2].slot)", "address[0].eq(step[1].slot)",
        {"items": [(0, 2), (0, 1), (0, 0)]}),
    "a slot is not cleared": (
        Kept, "clears.eq((probe & leaves) | step[3].close)", "clears.eq(step[3].close)",
        {"items": [(0, ssn) for ssn in (1, 0, 2, 3, 6, 4)]}),
    "no room is kept": (
        Kept, "go.eq(leaving.half & overs.half)", "go.eq(1)",
        {"items": [(0, ssn) for ssn in range(22)], "ready": 0}),
}  # fmt: skip


#: The bugs that two of the proofs are tried with; the others need ``--long``. That nothing is
#: cleared is a violation in ``tests/violations.toml``, too, which the third proof notices.
USUAL = ("something is on its way", "the item just before does not count")


@pytest.mark.parametrize(
    "bug", [*USUAL, *long(*(bug for bug in BUGS if bug not in USUAL))]
)
def test_a_reorder_that_errs_is_caught(bug):
    harness, old, new, inputs = BUGS[bug]
    component = planted("sctp.order", old, new).Reorder(16 if harness is Kept else 1, **SMALL)
    proof = bounded(scene(harness, component, **inputs), depth=50)
    assert proof.status == "FAIL", proof.log
