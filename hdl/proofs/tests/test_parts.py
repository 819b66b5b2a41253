"""Tests the proofs that no octet is read outside the part that its STag allows to read."""

import pytest
from ddp_rnic.hdl.dma.pages import PageCut
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.proofs.cuts import CONFIG, Marked, PageParts
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.parts import AnyCheck, AnyCut, Passed, Permitted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction
from ddp_rnic.hdl.send.checks import _Read

LAYOUT = Marked(_Read())


def checks(old="", new="", **others):
    """Returns the block, or a copy with a bug, before any cutter."""
    return planted("send.checks", old, new, PageCut=AnyCut, **others).PartCheck(CONFIG)


def test_a_part_is_read_only_where_its_stag_allows():
    proof = induction(Permitted(checks()), depth=Permitted.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(Permitted(checks(), lemmas=False), depth=Permitted.DEPTH + 3)
    assert proof.status == "PASS", proof.log


def test_parts_reach_the_cutter_as_checked_and_pieces_leave_as_cut():
    proof = induction(Passed(checks(TaggedCheck=AnyCheck)), depth=Passed.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(Passed(checks(TaggedCheck=AnyCheck), lemmas=False), depth=40)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
@bugs(
    "old, new",
    ("(result.error & ~then.inline)", "(result.error & then.last)"),
    ("then.refused | ~Mux(quick, enabled, result.enable)", "then.refused"),
    ("~Mux(quick, enabled, result.enable)", "~result.enable"),
    ("& looked.inline & ~coming", "& ~coming"),
    (" & ~coming[LOOKUP:].any()", ""),
    ("coming[LOOKUP - 1] & ~hurries", "coming[LOOKUP - 1]"),
    ("Mux(part.probe, 1, part.length)", "part.length"),
    ("header.to.eq(part.to)", "header.to.eq(looked.to)"),
    ("rights.stream.eq(looked.stream)", "rights.stream.eq(part.stream)"),
    ("delayed(m, WIRES, looked", "delayed(m, WIRES - 1, looked"),
    ("self.entry.remote_read, self.entry.local_read", "1, self.entry.local_read"),
    ("Mux(then.inline, 0, result.pages)", "0"),
    ("then.last | refused", "then.last"),
    ("(drops | refused) & ~then.last", "refused & ~then.last"),
    ids=["not last", "disabled", "disabled, inline", "unchecked", "overtaken", "twice", "probe",
         "offset", "stream", "early", "response", "page code", "last", "dropped"],
)
def test_a_check_of_parts_that_errs_is_caught(old, new):
    proof = bounded(Permitted(checks(old, new), lemmas=False), depth=Permitted.DEPTH + 2)
    assert proof.status == "FAIL", proof.log


@pytest.mark.long
@pytest.mark.parametrize(
    "old, new",
    [
        ("alive.eq(entry.valid)", "alive.eq(1)"),
        ("past.eq(room_low[:16] < ", "past.eq(room_low[:16] + 1 < "),
        ("& ones.all() & beyond.any()", "& beyond[1:].any() & ones.all()"),
        ("~Mux(bound, stream_equal, pd)", "~Mux(bound, pd, stream_equal)"),
    ],
    ids=["valid", "length", "wrap", "owner"],
)
def test_a_check_against_the_entry_that_errs_is_caught(old, new):
    bug = planted("ddp.tagged", old, new)
    component = checks(TaggedCheck=bug.TaggedCheck)
    proof = bounded(Permitted(component, lemmas=False), depth=Permitted.DEPTH)
    assert proof.status == "FAIL", proof.log


# With small queues, of which one overflows before the first part has left the checks.
@bugs(
    "old, new",
    ("cut.go.eq(pieces.half)", "cut.go.eq(1)"),
    ("pieces.o.ready.eq(self.o.ready)", "pieces.o.ready.eq(1)"),
    ("pieces.o.payload.exception", "cut.o.payload.exception"),
    ("cut.page.address.eq(self.page.address)", "cut.page.address.eq(0)"),
    ("cut.i.valid.eq(checked.o.valid & cut.ready", "cut.i.valid.eq(checked.o.valid"),
    ("cut.ready & ~passes", "cut.ready"),
    ("~part.pages.any() & ~cut.busy", "~cut.busy"),
    ("& ~cut.busy & pieces.half", "& pieces.half"),
    ("~cut.busy & pieces.half", "~cut.busy"),
    ids=["no room", "lost", "another piece", "page", "not taken", "twice", "paged", "overtaken",
         "no room for one that is not cut"],
)
def test_parts_and_pieces_that_are_mixed_up_are_caught(old, new):
    component = checks(old, new, TaggedCheck=AnyCheck, QUEUE=4)
    proof = bounded(Passed(component, lemmas=False), depth=17)
    assert proof.status == "FAIL", proof.log


@pytest.mark.parametrize("depth", [13, *long(PageParts.DEPTH)])
def test_the_pieces_of_a_part_are_its_octets(depth):
    proof = bounded(PageParts(PageCut(CONFIG, LAYOUT)), depth=depth)
    assert proof.status == "PASS", proof.log
    proof = covers(PageParts(PageCut(CONFIG, LAYOUT)), depth=PageParts.DEPTH)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("piece.last.eq(whole.last & sequencer.last)", "piece.last.eq(sequencer.last)"),
    ("later = delayed(m, 2, piece", "later = delayed(m, 1, piece"),
    ("Mux(sequencer.last, whole.length, body.room)", "body.room"),
    ids=["last", "another page", "length"],
)
def test_a_piece_of_other_octets_is_caught(old, new):
    bug = planted("dma.pages", old, new)
    proof = bounded(PageParts(bug.PageCut(CONFIG, LAYOUT)), depth=PageParts.DEPTH)
    assert proof.status == "FAIL", proof.log
