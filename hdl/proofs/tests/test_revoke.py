"""Tests the proofs that after a revocation reads done nothing is written to the region."""

import pytest
from ddp_rnic.hdl.control import SETTLE
from ddp_rnic.hdl.ddp.commit import Commit
from ddp_rnic.hdl.ddp.fence import Fence, Sweep
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.revoke import CONFIG, Counted, Fenced, Swept
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction


def test_what_was_looked_up_is_counted_before_the_fence_looks():
    proof = induction(Counted(Commit(CONFIG)), depth=Counted.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_what_was_looked_up_is_counted():
    proof = covers(Counted(Commit(CONFIG), lemmas=False), depth=24)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_what_is_counted_too_late_is_caught():
    bug = planted(
        "ddp.commit",
        "            self.issued.eq(issued),",
        f"            Cat(self.issued, late := Signal(16 * {SETTLE})).eq(Cat(late, issued)),",
    )
    proof = bounded(Counted(bug.Commit(CONFIG), lemmas=False), depth=24 + SETTLE)
    assert proof.status == "FAIL", proof.log


def test_the_fence_waits_for_all_that_was_looked_up():
    proof = induction(Fenced(Fence(SETTLE)))
    assert proof.status == "PASS", proof.log
    proof = covers(Fenced(Fence(SETTLE), lemmas=False), depth=SETTLE + 16)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("(self.retired - target)[15]", "(self.retired + 1 - target)[15]"),
    ("left - 1, self.settle)", "left - 1, self.settle - 1)"),
    ids=["retired", "settle"],
)
def test_a_fence_that_falls_too_soon_is_caught(old, new):
    bug = planted("ddp.fence", old, new)
    proof = bounded(Fenced(bug.Fence(4), lemmas=False), depth=20)
    assert proof.status == "FAIL", proof.log


def test_a_sweep_revokes_every_entry_of_its_stream_and_no_other():
    proof = bounded(Swept(Sweep(16)), depth=Swept.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(Swept(Sweep(16)), depth=Swept.DEPTH)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("past[0].valid.eq(walks)", "past[0].valid.eq(walks & ~self.index.all())"),
    ("bound[1] & same.all()", "bound[1]"),
    ids=["last", "owner"],
)
def test_a_sweep_that_errs_is_caught(old, new):
    bug = planted("ddp.fence", old, new)
    proof = bounded(Swept(bug.Sweep(16)), depth=Swept.DEPTH)
    assert proof.status == "FAIL", proof.log
