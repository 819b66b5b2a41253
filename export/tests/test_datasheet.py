"""Tests the data sheet: where its numbers come from, its pictures, and its bring-up."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Fragment
from ddp_rnic.export import datasheet, drawing, registers, testbench, trial
from ddp_rnic.export.estimate import estimate
from ddp_rnic.export.interface import buses
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.hdl.flat import FlatRnic
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.rnic import Rnic
from ddp_rnic.hdl.spec import completion, regs, send
from ddp_rnic.hdl.spec.commands import Wait, Write
from ddp_rnic.hdl.spec.config import RnicConfig, parameters
from ddp_rnic.sim.engines.engine import DeviceError

SMALL = RnicConfig(streams=16, stags=32, pages=32, buffers=32, queue_depth=8)
SENDS = RnicConfig(streams=16, stags=32, pages=32, buffers=32, transmit=True, responder=True)
SCTP = RnicConfig(streams=16, stags=32, mpa=False, sctp=True, associations=4, window=4)
ALL = RnicConfig(transmit=True, responder=True, sctp=True)
ONLY = RnicConfig(streams=16, stags=32, pages=32, receive=False, transmit=True)

record = cache(trial.run)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The page of a configuration, with the record of the small one."""
    monkeypatch.setattr(trial, "run", lambda config: record(SMALL))
    return datasheet.page


def numbers(text: str) -> list[str]:
    """Returns the numbers in the text of a page, without its style and its tags."""
    body = re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
    return re.findall(r"(?<![\w.])\d[\w.,]*", body)


def test_the_template_has_no_number_of_its_own() -> None:
    template = datasheet._TEMPLATE.read_text()
    assert not numbers(template)
    assert numbers("<h2>8 lanes of $width</h2><p>0x10, v2</p>") == ["8", "0x10,"]
    names = set(re.findall(r"\$(\w+)", template))
    assert {"latency", "area", "registers"} <= names and "$$" not in template


@pytest.mark.long
def test_another_parameter_changes_its_numbers(page: Any) -> None:
    before = page(SMALL)
    changed = RnicConfig(**{**vars(SMALL), "stags": 4096})
    after = page(changed)
    rams = [f"<b>{estimate(each).area.dp16kd}</b>" for each in (SMALL, changed)]
    assert rams[0] != rams[1]
    for text, here, other in ((before, rams[0], rams[1]), (after, rams[1], rams[0])):
        assert here in text and other not in text
    assert "4,096" in after and "4,096" not in before and "4096 STags" in after


@pytest.mark.long
def test_another_run_changes_the_latency_and_the_rate(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = record(SMALL)
    placed = found.after("MPA WRITE_1", "m_axi_aw")
    assert f">{placed}</td>" in page(SMALL)
    moved = found._replace(
        marks={name: at - 1 for name, at in found.marks.items()}, cycles_per_segment={"MPA": 77.5}
    )
    monkeypatch.setattr(trial, "run", lambda config: moved)
    text = page(SMALL)
    assert f">{placed + 1}</td>" in text and ">77.5</td>" in text
    assert f">{8 * trial.PAYLOAD / 77.5:.1f}</td>" in text


def test_the_tables_have_every_parameter_port_register_and_field() -> None:
    tables = (datasheet._parameters, datasheet._ports, datasheet._registers)
    text = "".join(table(SENDS) for table in tables)
    names = [each.name for each in parameters()] + [each.name for each in buses(SENDS)]
    names += [each.name for each in registers.registers(SENDS)]
    for name in names:
        assert f"<code>{name}</code>" in text
    assert "ASSOC_TAG" not in text and "s_axis_eth" not in text
    assert all(f"<code>{each.name}</code>" in datasheet._requests() for each in send.MESSAGE)


def test_only_a_device_that_sends_has_work_requests(page: Any) -> None:
    text = page(SMALL)
    assert "A piece of a message" not in text and f"{completion.OCTETS} octets" in text
    assert "A piece of a message" in datasheet._requests()


def test_it_needs_no_other_file(page: Any) -> None:
    text = page(SMALL)
    assert not re.search(r"https?:|<script|<link|<img|url\((?!#)", text)
    for media in ("prefers-color-scheme: dark", "print", "max-width"):
        assert f"@media ({media}" in text or f"@media {media}" in text


@pytest.mark.parametrize("config", [SMALL, SENDS, *long(SCTP, ALL, ONLY)])
def test_the_diagram_has_blocks_and_ports_of_the_gateware(config: RnicConfig) -> None:
    inside = {name for _, name, *_ in Fragment.get(Rnic(config), None).subfragments}
    outside = {name for name in FlatRnic.ports(config)}
    svg = drawing.diagram(config)
    for block in drawing.BLOCKS:
        there = block in drawing.blocks(config)
        if block.column in (0, 6):
            assert there == any(
                port == block.name or re.match(rf"{block.name}_(t|aw|ar)", port) for port in outside
            )
        else:
            assert there == (block.name in inside), block.name
        assert there == (f">{block.label}</text>" in svg)
    places = [(block.column, block.row) for block in drawing.blocks(config)]
    assert len({*places}) == len(places)


@pytest.mark.parametrize("config", [SMALL, *long(SENDS, SCTP)])
def test_the_trial_places_each_octet(config: RnicConfig) -> None:
    found = record(config)
    for llp in found.cycles_per_segment:
        packet = dict(testbench.packets_of(config))[f"{llp}_WRITE_1"]
        stream, tag, offsets, _ = testbench.LLPS[llp]
        octets = testbench._octets(tag, testbench._LENGTHS[0])
        assert octets in packet
        begun = found.marks[f"{llp} WRITE_1"]
        at = next(each for each in found.transfers("m_axi_aw") if each > begun)
        beats = [each for each in found.transfers("m_axi_w") if each > begun]
        first = found.values("m_axi_wstrb")[beats[0]]
        address = found.values("m_axi_awaddr")[at] + (first & -first).bit_length() - 1
        written = b""
        for beat in beats[: found.values("m_axi_awlen")[at] + 1]:
            data = found.values("m_axi_wdata")[beat].to_bytes(config.octets, "little")
            strobe = found.values("m_axi_wstrb")[beat]
            written += bytes(each for k, each in enumerate(data) if strobe >> k & 1)
        assert (written, address) == (octets, testbench._REGION + offsets[0])
        least = trial.PAYLOAD / config.octets
        assert least <= found.cycles_per_segment[llp] < 1.5 * least + 10
    assert ("doorbell" in found.marks) == config.transmit


def test_a_trial_that_comes_to_no_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    packets = {
        name: octets[:-1] + bytes([octets[-1] ^ 1]) for name, octets in testbench.packets_of(SMALL)
    }
    monkeypatch.setattr(testbench, "packets_of", lambda config: packets.items())
    monkeypatch.setattr(trial, "_PATIENCE", 200)
    with pytest.raises(DeviceError, match="m_axi_cq_aw had no completion within 200 cycles"):
        trial.run(SMALL)


def test_a_timing_picture_shows_the_recorded_values() -> None:
    found = record(SMALL)
    text = "".join(datasheet._pictures(SMALL, found))
    first = found.transfers("s_axis_t")[0]  # the first Write is the shortest packet
    for cycle in range(first, found.marks["MPA WRITE_1"] + 1):
        assert f"<title>0x{found.values('s_axis_tdata')[cycle]:x}</title>" in text
    address = found.transfers("s_axil_ar")[0]
    assert f"<title>0x{found.values('s_axil_araddr')[address]:x}</title>" in text
    assert f"<title>0x{regs.ID:x}</title>" in text
    for caption in ("AXI4Stream: a packet", "AXI4: a write", "AXI4-Lite: a read"):
        assert caption in text
    assert "AXI4: a read" not in text  # this device does not read host memory
    shape = drawing.timing(found, ["s_axis_tvalid"], first - 1, first)
    assert re.search(r'class="level" d="M(\d+) 21H\d+V5H', shape)


def steps(config: RnicConfig) -> list[Write | Wait]:
    return [step for each in datasheet.calls(config) for step in each.steps]


@pytest.mark.parametrize("config", [SMALL, ALL, ONLY])
def test_the_sequence_in_python_gives_the_steps(config: RnicConfig) -> None:
    done: list[Any] = []
    waits = [each for each in steps(config) if isinstance(each, Wait)]

    def read(address: int) -> int:
        (each, *_), waits[:] = waits[:1], waits[1:]
        assert address == regs.address(each.register)
        done.append(each)
        return each.value

    space = {"read": read, "write": lambda address, value: done.append((address, value))}
    exec(datasheet.in_python(config), space)
    assert done == [
        (regs.address(each.register), each.value) if isinstance(each, Write) else each
        for each in steps(config)
    ]


@pytest.mark.parametrize("config", [SMALL, ALL, ONLY])
def test_the_sequence_in_c_gives_the_steps(config: RnicConfig, tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    waits = [each.value for each in steps(config) if isinstance(each, Wait)]
    values = "".join(f"{value:#x}u, " for value in waits)
    (tmp_path / "rnic.h").write_text(registers.header(config))
    (tmp_path / "main.c").write_text(
        f"#include <stdio.h>\n{datasheet.in_c(config)}\n"
        f"static const uint32_t values[] = {{ {values} }};\nstatic int at;\n"
        'uint32_t rnic_read(uint32_t address) { printf("%x\\n", address); return values[at++]; }\n'
        "void rnic_write(uint32_t address, uint32_t value)"
        ' { printf("%x %x\\n", address, value); }\n'
        "int main(void) { rnic_bring_up(); return 0; }\n"
    )
    program = tmp_path / "main"
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-o", str(program), str(tmp_path / "main.c")], check=True
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert done.splitlines() == [
        f"{regs.address(each.register):x}" + (f" {each.value:x}" if isinstance(each, Write) else "")
        for each in steps(config)
    ]


def test_chromium_prints_a_pdf_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sheet.html"
    path.write_text("<p>text</p>")
    if not any(map(shutil.which, datasheet._BROWSERS)):
        assert datasheet.print_pdf(path) is None
        pytest.skip("there is no Chromium")
    pdf = datasheet.print_pdf(path)
    assert pdf == tmp_path / "sheet.pdf" and pdf.read_bytes().startswith(b"%PDF")


def test_a_browser_that_fails_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert datasheet.print_pdf(tmp_path / "sheet.html") is None
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\nexit 1\n")
    browser.chmod(0o755)
    with pytest.raises(ToolError, match="chromium could not print .*sheet.html"):
        datasheet.print_pdf(tmp_path / "sheet.html")
