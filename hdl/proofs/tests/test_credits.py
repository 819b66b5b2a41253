"""Tests the proof that no more credits are taken than there are."""

import pytest
from ddp_rnic.hdl.lib.credits import Credits
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.proofs.credits import Credited
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction

LIMIT = 6


@pytest.mark.parametrize("lag", [0, 4, *long(1)])
def test_no_more_credits_are_taken_than_there_are(lag):
    harness = Credited(Credits(LIMIT, lag=lag))
    proof = induction(harness, depth=harness.depth)
    assert proof.status == "PASS", proof.log
    proof = covers(Credited(Credits(LIMIT, lag=lag), lemmas=False), depth=LIMIT + 4 + lag)
    assert proof.status == "PASS", proof.log


@bugs(
    "lag, old, new",
    (4, "self.limit - self.lag)", "self.limit - self.lag + 1)"),
    (0, "self.give | (free & ~(self.take & one))", "self.give | free"),
    (0, "used == self.limit - 2", "used == self.limit - 1"),
    (1, "m.d.sync += self.idle.eq(used == 1)", "m.d.sync += self.idle.eq(1)"),
    ids=["lag", "free", "last", "idle"],
)
def test_a_counter_that_errs_is_caught(lag, old, new):
    bug = planted("lib.credits", old, new)
    proof = bounded(Credited(bug.Credits(LIMIT, lag=lag), lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log
