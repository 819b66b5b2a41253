"""Tests the proof that no FPDU goes beyond the credit of its stream."""

import pytest
from ddp_rnic.hdl.proofs.credit import Anything, Costs, Counted, Looked, Row, Within
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction


def within(module="send.credit", old="", new="", **options):
    """Returns the proof of the block, or of a copy with a bug in a module."""
    def changed(name, **others):
        return planted(name, *((old, new) if name == module else ()), **others)

    credit = changed("send.credit", ForwardedTable=Row, Store=Looked, FpduLength=Costs)
    cutter = changed("send.segmenter", ForwardedTable=Anything,
                     CreditAccounts=credit.CreditAccounts, enough=credit.enough).Cutter(64, 2)
    return Within(cutter, credit.enough, **options)


def counted(module="send.credit", old="", new=""):
    length = planted("mpa.length", *((old, new) if module == "mpa.length" else ()))
    credit = planted("send.credit", *((old, new) if module == "send.credit" else ()))
    return Counted(length.FpduLength(), credit.enough)


@pytest.mark.long
def test_the_words_of_an_fpdu_are_counted():
    proof = induction(counted(), depth=Counted.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(counted(), depth=4)
    assert proof.status == "PASS", proof.log


@bugs(
    "module, old, new",
    ("send.credit", "Mux(markers, 21, 9)", "Mux(markers, 13, 9)"),
    ("mpa.length", "words[7:] + more", "words[7:]"),
    ("mpa.length", "after[:7] + after[7]", "after[:7]"),
    ids=["too few", "a marker", "position"],
)
def test_words_that_are_miscounted_are_caught(module, old, new):
    proof = bounded(counted(module, old, new), depth=4)
    assert proof.status == "FAIL", proof.log


@pytest.mark.long
def test_no_octet_leaves_beyond_the_credit_in_the_first_cycles():
    # In 12 cycles no segment can be wrong yet: the bug "plenty" is found in 13.
    proof = bounded(within(lemmas=False), depth=13)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_no_octet_leaves_beyond_the_credit():
    proof = induction(within(), depth=Within.DEPTH, timeout=1200)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_turns_with_and_without_credit_are_reached():
    proof = covers(within(lemmas=False), depth=20)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@bugs(
    "module, old, new",
    ("send.credit", "left[2 + PLENTY:].any()", "left[PLENTY:].any()"),
    ("send.segmenter", "Mux(tests, needs <= left, ", "Mux(tests, C(1, 1), "),
    ("send.credit", "replicate(30), left[2:])", "replicate(30), left[1:])"),
    ids=["plenty", "test", "words"],
)
def test_a_cutter_that_takes_too_much_is_caught(module, old, new):
    proof = bounded(within(module, old, new, lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log
