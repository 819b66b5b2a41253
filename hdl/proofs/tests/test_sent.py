"""Tests the proof that each request completes exactly once."""

import pytest
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.sent import CONFIG, Completed, Entry, Present
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction


def completed(old="", new="", **options):
    """Returns the proof of the block, or of a copy with a bug."""
    copy = planted("send.sent", old, new, Backlog=Present, StepTable=Entry)
    return Completed(copy.SentCompletions(CONFIG), **options)


def test_each_request_completes_once():
    proof = induction(completed(), depth=Completed.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_completions_are_reached():
    proof = covers(completed(lemmas=False, few=True), depth=36)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@bugs(
    "old, new",
    ("now.silent, failed |", "C(0, 1), failed |"),
    ("latest == done for latest", "C(1, 1) for latest"),
    ("with m.If(~came & ~freed):", "with m.If(~freed):"),
    ("listed.eq(~now.listed & _reported(becomes).any())", "listed.eq(_reported(becomes).any())"),
    ("Mux(owes[0], found.good, ", "Mux(owes[0], found.index, "),
    ("becomes.behind.eq(now.behind & ~message.lost)", "becomes.behind.eq(now.behind)"),
    ("~failed & ~late", "~failed"),
    ids=["silent", "meanwhile", "room", "listed", "too many", "lost", "late"],
)
def test_completions_that_err_are_caught(old, new):
    proof = bounded(completed(old, new, lemmas=False, few=True), depth=36)
    assert proof.status == "FAIL", proof.log
