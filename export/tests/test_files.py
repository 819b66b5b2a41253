"""Tests ``rnic export``: its files, its output, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from ddp_rnic.cli.app import app
from ddp_rnic.export import datasheet, files
from ddp_rnic.hdl.spec.config import RnicConfig
from typer.testing import CliRunner, Result


@pytest.fixture(autouse=True)
def _no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion takes long, and ``test_interface.py`` checks its result.

    So does the run for the data sheet, which ``test_datasheet.py`` checks.
    """
    monkeypatch.setattr(
        files, "to_verilog",
        lambda config: f"// {config.width} {config.sctp} {config.transmit}\n",
    )  # fmt: skip
    monkeypatch.setattr(datasheet, "page", lambda config: f"<p>{config.width} s_axis</p>")
    monkeypatch.setattr(datasheet, "print_pdf", lambda path: None)


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def test_it_writes_every_file_and_names_them(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    result = export("--set", "width=256", "--set", "sctp=true", "--out", out)
    assert result.exit_code == 0 and result.stderr == ""
    told = [Path(line) for line in result.stdout.splitlines()]
    assert sorted(told) == sorted(out.iterdir())
    assert {path.name for path in told} == {
        *(
            "rnic.v",
            "rnic.vlt",
            "tb_rnic.v",
            "rnic.h",
            "rnic.vh",
            "rnic.rdl",
            "registers.md",
            "component.xml",
            "litex_rnic.py",
            "vivado.tcl",
            "datasheet.html",
        )
    }
    assert (out / "rnic.v").read_text() == "// 256 True False\n"
    for name in ("component.xml", "litex_rnic.py", "vivado.tcl"):
        assert "s_axis_eth" in (out / name).read_text()
    for name in ("rnic.h", "rnic.vh", "rnic.rdl", "component.xml", "tb_rnic.v"):
        assert "ASSOC_PORTS" in (out / name).read_text()


def test_without_options_it_is_64_bits_without_sctp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export().exit_code == 0
    out = tmp_path / "build" / "export"
    assert (out / "rnic.v").read_text() == "// 64 False False\n"
    assert not any(
        "s_axis_eth" in path.read_text() for path in out.iterdir() if path.name != "tb_rnic.v"
    )
    assert "`define RNIC_SCTP" not in (out / "tb_rnic.v").read_text()


def test_with_transmit_every_file_knows_how_it_sends(tmp_path: Path) -> None:
    assert export("--set", "transmit=true", "--out", tmp_path).exit_code == 0
    assert (tmp_path / "rnic.v").read_text() == "// 64 False True\n"
    for name in ("component.xml", "litex_rnic.py", "tb_rnic.v"):
        assert "m_axis_tdata" in (tmp_path / name).read_text()
    assert " m_axis " in (tmp_path / "vivado.tcl").read_text()
    for name in ("rnic.h", "rnic.rdl", "component.xml", "registers.md", "tb_rnic.v"):
        assert "SEND_DOORBELL" in (tmp_path / name).read_text()
    assert "`define RNIC_TRANSMIT" in (tmp_path / "tb_rnic.v").read_text()


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for arguments, words in (
        (("--set", "width=65", "--out", tmp_path / "out"), "65"),
        (("--out", file), f"--out {file}: {file} is a file, not a directory"),
        (("--out", file / "below"), f"--out {file / 'below'}: {file} is a file"),
    ):
        result = export(*arguments)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.count("\n") == 1 and words in result.stderr
    assert not (tmp_path / "out").exists()


def test_progress_names_each_file_before_it_is_written(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, text: str) -> None:
        name = text.partition(",")[0]
        assert not (tmp_path / name).exists() and len([*tmp_path.iterdir()]) == done
        calls.append((done, total, text))

    written = files.export(RnicConfig(), tmp_path, progress)
    assert [(done, text.partition(",")[0]) for done, _, text in calls] == [
        (at, path.name) for at, path in enumerate(written)
    ]
    assert {total for _, total, _ in calls} == {len(written)}
    assert calls[-1][2] == "datasheet.html, after a trial in simulation"
