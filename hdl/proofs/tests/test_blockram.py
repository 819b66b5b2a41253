"""Tests the proofs that memories return the item that was written last."""

import pytest
from ddp_rnic.hdl.lib.blockram import BlockRam, ForwardedTable, StepTable
from ddp_rnic.hdl.proofs.blockram import Latest, Steps, Stored
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction

DEPTH = 4
#: All tables in block RAM, as large ones are.
LARGE = planted("lib.blockram", ram_style=lambda *_: "block")
#: Another device: of an address that is read while it is written, it returns no item of any cycle.
OTHER_DEVICE = planted(
    "lib.blockram",
    "            with m.If(self.shows):\n                m.d.sync += held.eq(read.data)\n",
    """
            collides = Signal(name=f"collides_{k}")
            with m.If(read.en):
                m.d.sync += collides.eq(write.en & (write.addr == read.addr))
            with m.If(self.shows):
                m.d.sync += held.eq(Mux(collides, ~read.data, read.data))
""",
    ram_style=lambda *_: "block",
)


def test_block_ram_returns_the_item_that_was_written_last():
    proof = induction(Stored(BlockRam(2, DEPTH)), depth=Stored.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(Stored(BlockRam(2, DEPTH), lemmas=False), depth=8)
    assert proof.status == "PASS", proof.log


def test_block_ram_returns_the_item_that_was_written_last_on_another_device():
    proof = bounded(Stored(OTHER_DEVICE.BlockRam(2, DEPTH), lemmas=False), depth=10)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize(
    "kind",
    (ForwardedTable, LARGE.ForwardedTable, OTHER_DEVICE.ForwardedTable),
    ids=["small", "large", "other"],
)
def test_a_reader_of_a_table_sees_the_latest_entry_on_any_device(kind):
    proof = induction(Latest(kind(2, DEPTH)), depth=Latest.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(Latest(kind(2, DEPTH), lemmas=False), depth=8)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("read.en.eq(self.moves)", "read.en.eq(1)"),
    ("with m.If(self.shows):", "with m.If(1):"),
    ids=["moves", "shows"],
)
def test_block_ram_that_errs_is_caught(old, new):
    bug = planted("lib.blockram", old, new)
    proof = bounded(Stored(bug.BlockRam(2, DEPTH), lemmas=False), depth=8)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("copies(m, address, 1,", "copies(m, address[1:], 1,"),
    ("Value.cast(held).eq(Value.cast(read.data))", "Value.cast(held).eq(Value.cast(write.data))"),
    ids=["address", "data"],
)
def test_a_small_table_that_errs_is_caught(old, new):
    bug = planted("lib.blockram", old, new)
    proof = bounded(Latest(bug.ForwardedTable(2, DEPTH), lemmas=False), depth=8)
    assert proof.status == "FAIL", proof.log


@bugs(
    "old, new",
    ("clash[0].eq(same.all())", "clash[0].eq(0)"),
    ("same.eq(Cat(self.write.valid, equal))", "same.eq(Cat(C(1, 1), equal))"),
    ("nibbles(address, written.address)", "nibbles(address[1:], written.address[1:])"),
    ("clash[1], Value.cast(latest[1])", "clash[1], Value.cast(latest[0])"),
    ids=["none", "valid", "address", "late"],
)
def test_a_table_that_errs_is_caught(old, new):
    bug = planted("lib.blockram", old, new, ram_style=lambda *_: "block")
    proof = bounded(Latest(bug.ForwardedTable(2, DEPTH), lemmas=False), depth=8)
    assert proof.status == "FAIL", proof.log


@pytest.mark.parametrize(
    "kind",
    (StepTable, LARGE.StepTable, OTHER_DEVICE.StepTable),
    ids=["small", "large", "other"],
)
def test_a_step_sees_the_changes_of_all_earlier_ones_on_any_device(kind):
    proof = induction(Steps(kind(2, DEPTH)), depth=Steps.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(Steps(kind(2, DEPTH), lemmas=False), depth=12)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("(begun[1] | self.steps)", "begun[1]"),
    ("(begun[1] | self.steps)", "self.steps"),
    ("(entry == latest) &", "(entry[1:] == latest[1:]) &"),
    ("delayed(m, 4, entry, \"at\")", "delayed(m, 3, entry, \"at\")"),
    ("writes, at, self.write.payload.address", "writes, latest, self.write.payload.address"),
    ("self.write.ready.eq(~writes)", "self.write.ready.eq(1)"),
    ("fresh.eq(same)", "fresh.eq(0)"),
    ("writes | self.write.valid", "writes"),
    ids=["far", "near", "entry", "place", "latest", "ready", "fresh", "replaced"],
)
def test_a_step_that_misses_one_is_caught(old, new):
    bug = planted("lib.blockram", old, new)
    proof = bounded(Steps(bug.StepTable(2, DEPTH), lemmas=False), depth=12)
    assert proof.status == "FAIL", proof.log
