"""Tests the register map with the compilers of the other languages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ddp_rnic.export.layouts import NUMBERS
from ddp_rnic.export.registers import CONSTANTS, header, page, rdl, verilog_header
from ddp_rnic.flow.tools import compiler
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.config import RnicConfig
from systemrdl import RDLCompiler
from systemrdl.node import FieldNode, RegfileNode, RegNode

CONFIGS = [
    RnicConfig(), RnicConfig(sctp=True), RnicConfig(transmit=True),
    RnicConfig(receive=False, transmit=True),
]  # fmt: skip
IDS = ["mpa", "sctp", "transmit", "only sends"]


def expected(config: RnicConfig) -> list[regs.Register]:
    return regs.registers_of(config)


def read_rdl(config: RnicConfig, folder: Path) -> list[RegNode | RegfileNode]:
    """Returns the registers and doorbell pages that SystemRDL's compiler finds."""
    path = folder / "rnic.rdl"
    path.write_text(rdl(config), encoding="utf-8")
    rdl_compiler = RDLCompiler()
    rdl_compiler.compile_file(str(path))
    top = rdl_compiler.elaborate().top
    assert top.inst_name == "rnic"
    return [each for each in top.children() if isinstance(each, RegNode | RegfileNode)]


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_systemrdl_has_the_registers_of_the_map(config: RnicConfig, tmp_path: Path) -> None:
    access = {"r": "ro", "rw": "rw", "w": "wo"}
    found = []
    for each in read_rdl(config, tmp_path):
        if isinstance(each, RegfileNode):
            continue
        inside = list(each.fields())
        ways = {access[field.get_property("sw").name] for field in inside}
        own = tuple(
            regs.Field(field.inst_name, field.low, field.width, str(field.get_property("desc")))
            for field in inside
        )
        if [field.name for field in own] == ["value"]:
            assert (own[0].low, own[0].bits) == (0, 32)
            own = ()
        assert each.size == 4 and len(ways) == 1
        doc = str(each.get_property("desc"))
        found.append(regs.Register(each.inst_name, each.address_offset, ways.pop(), doc, own))
    # The compiler sorts registers by address, fields by bit.
    assert found == sorted(expected(config), key=lambda register: register.address)


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_systemrdl_has_the_doorbell_pages(config: RnicConfig, tmp_path: Path) -> None:
    (pages,) = (each for each in read_rdl(config, tmp_path) if isinstance(each, RegfileNode))
    assert pages.array_dimensions == [regs.PAGES]
    for number, each in enumerate(pages.unrolled(), 1):
        found = {inside.inst_name: inside.absolute_address for inside in each.registers()}
        assert found == {
            name: regs.doorbell(name, number)
            for name in regs.DOORBELLS
            if config.transmit or name != "SEND_DOORBELL"
        }


def test_systemrdl_knows_what_identifies_the_device(tmp_path: Path) -> None:
    values: dict[str, int] = {}
    for each in read_rdl(RnicConfig(), tmp_path):
        if isinstance(each, RegfileNode):
            continue
        for field in each.fields():
            assert isinstance(field, FieldNode)
            value = field.get_property("reset")
            if value is not None:
                assert isinstance(value, int) and not field.is_hw_writable
                values[each.inst_name] = values.get(each.inst_name, 0) | value << field.low
    assert values == CONSTANTS == {"ID": regs.ID, "VERSION": regs.VERSION}


def compile_header(config: RnicConfig, folder: Path, facts: list[str], *flags: str) -> bool:
    """Returns True if the compiler finds all ``facts`` true; a file without facts must compile."""
    (folder / "rnic.h").write_text(header(config), encoding="utf-8")
    lines = [f"typedef char fact_{k}[({fact}) ? 1 : -1];" for k, fact in enumerate(facts)]
    source = folder / "facts.c"
    source.write_text("\n".join(['#include "rnic.h"', '#include "rnic.h"', *lines, ""]))
    command = [
        *compiler(),
        *flags,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-fsyntax-only",
        str(source),
    ]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "flags",
    [
        ("-x", language, f"-std={standard}")
        for language, standard in (("c", "c89"), ("c", "c11"), ("c++", "c++98"), ("c++", "c++17"))
    ],
    ids=lambda flags: flags[2],
)
@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_the_header_says_what_the_map_does(
    config: RnicConfig, flags: tuple[str, ...], tmp_path: Path
) -> None:
    facts = [f"RNIC_SIZE == {1 << regs.ADDRESS_BITS}"]
    facts += [f"RNIC_PAGES == {regs.PAGES}", f"RNIC_PAGE_SIZE == {regs.PAGE_SIZE}"]
    facts += [f"RNIC_{name}_VALUE == {value}u" for name, value in CONSTANTS.items()]
    facts += [
        f"RNIC_{prefix}_{each.name} == {each.value}u" for prefix, numbers in NUMBERS.items()
        for each in numbers
    ]  # fmt: skip
    for register in expected(config):
        facts.append(f"RNIC_{register.name} == {register.address}")
        for field in register.fields:
            name = f"RNIC_{register.name}_{field.name.upper()}"
            ones = regs.pack(register.name, **{field.name: (1 << field.bits) - 1})
            facts += [
                f"{name}_MASK == {ones}u",
                f"{name}_MASK >> {name}_SHIFT == {ones >> field.low}u",
            ]
    assert compile_header(config, tmp_path, facts, *flags)
    assert not compile_header(config, tmp_path, ["RNIC_SCRATCH == 0"], *flags)


def test_the_header_has_only_registers_of_the_device(tmp_path: Path) -> None:
    sctp_only = ["RNIC_FRAMES == 0x200"]
    flags = ("-x", "c", "-std=c99")
    assert compile_header(CONFIGS[1], tmp_path, sctp_only, *flags)
    assert not compile_header(CONFIGS[0], tmp_path, sctp_only, *flags)
    doorbell = ["RNIC_SEND_DOORBELL == 0x284"]
    assert compile_header(CONFIGS[2], tmp_path, doorbell, *flags)
    assert not compile_header(CONFIGS[0], tmp_path, doorbell, *flags)
    assert compile_header(CONFIGS[3], tmp_path, doorbell, *flags)
    event = ["RNIC_EVENT_POP == 0xe4"]
    assert compile_header(CONFIGS[0], tmp_path, event, *flags)
    assert not compile_header(CONFIGS[3], tmp_path, event, *flags)


def test_the_page_of_the_project_is_that_of_its_registers() -> None:
    """If this fails: write :func:`page` of that configuration to the file."""
    kept = Path(regs.__file__).with_name("registers.md").read_text(encoding="utf-8")
    assert page(RnicConfig(sctp=True, transmit=True, responder=True)) == kept
    rows = [line for line in kept.splitlines() if line.startswith("| 0x")]
    assert len(rows) == len(regs.REGISTERS)
    assert all(row.count(" | ") == 3 for row in rows)
    for config, others in (
        (RnicConfig(), "STR"),
        (RnicConfig(transmit=True), "SR"),
        (RnicConfig(sctp=True, transmit=True, receive=False), "PR"),
    ):
        others_only = re.compile(rf", \w*[{others}]\w* \| ")
        lines = [line for line in kept.splitlines() if not others_only.search(line)]
        assert page(config) == "\n".join([*lines, ""])


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_the_verilog_header_has_the_constants_of_the_c_header(config: RnicConfig) -> None:
    ours = re.findall(r"(RNIC_\w+) = (?:\d+'h)?(\w+);", verilog_header(config))
    assert len(ours) == len(verilog_header(config).splitlines()) - 3
    text = header(config)
    for name, value in ours:
        (known,) = re.findall(rf"#define {name} (\w+?)u?\b", text)
        assert int(known, 0) == int(value, 10 if name.endswith("_SHIFT") else 16), name
    registers = {f"RNIC_{register.name}" for register in expected(config)}
    assert registers <= {name for name, _ in ours}
