"""Tests the proofs of Reorder: sessions that end, and the order of records."""

import pytest
from amaranth.hdl import Mux, Signal
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.reorder import Ended, Survives
from ddp_rnic.hdl.proofs.tests.run import bounded, induction
from ddp_rnic.hdl.sctp.order import Reorder

SIZE = {"streams": 2, "window": 4}


@pytest.mark.parametrize("size", [SIZE, {"streams": 64, "window": 16}], ids=["small", "large"])
def test_a_record_that_waits_does_not_survive_its_session(size):
    proof = induction(Survives(Reorder(1, **size)), depth=2)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize("size", [SIZE, {"streams": 64, "window": 16}], ids=["small", "large"])
def test_nothing_leaves_between_two_sessions(size):
    proof = induction(Ended(Reorder(1, **size)), depth=6)
    assert proof.status == "PASS", proof.log


def scene(harness, component, *, first, ends, next_):
    """Returns the harness for a component, with inputs that reach a bug within seconds.

    An item of stream 1 with DDP-SSN ``first`` comes in the first cycle. From cycle ``ends`` on, its
    session is closed. Another item, with DDP-SSN 0, comes in cycle ``next_``.
    """

    class Scene(harness):
        def rules(self, m):
            super().rules(m)
            dut, ticket = self.dut, self.dut.i.payload.ticket
            cycle, closed = Signal(8), Signal()
            m.d.sync += [cycle.eq(cycle + 1), closed.eq(closed | dut.close.ready)]
            begins = cycle == 0
            for condition in (
                dut.i.valid == (begins | (cycle == next_)),
                ticket.ssn == Mux(begins, first, 0),
                ticket.fills == ~begins,
                ticket.stream & ~ticket.final,
                dut.close.valid == ((cycle >= ends) & ~closed),
                dut.close.payload.stream,
                dut.close.payload.opens == (harness is Survives),
                dut.o.ready & dut.over.ready,
            ):
                self.assume(condition)

    return Scene(component, lemmas=False)


LEAVES = {"first": 1, "ends": 9, "next_": 24}
BUGS = {
    "one place is cleared": (Survives, "wipes & cleared.all()", "wipes", LEAVES),
    "nothing is cleared": (
        Survives, "clears.eq((probe & leaves) | step[3].close)", "clears.eq(probe & leaves)",
        LEAVES),
    "another stream is cleared": (
        Survives, "place_of(self.close.payload.stream, cleared,",
        "place_of(~self.close.payload.stream, cleared,", LEAVES),
    "it stays open": (Ended, "Mux(closes, ~step[4].opens, final)", "Mux(closes, 0, final)", LEAVES),
    "something is on its way": (
        Ended, "wipes.eq(closing & calm.all())", "wipes.eq(closing)",
        {"first": 0, "ends": 1, "next_": 24}),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_session_that_is_not_forgotten_is_caught(bug):
    harness, old, new, items = BUGS[bug]
    component = planted("sctp.order", old, new).Reorder(1, **SIZE)
    proof = bounded(scene(harness, component, **items), depth=50, waves=False)
    assert proof.status == "FAIL", proof.log
