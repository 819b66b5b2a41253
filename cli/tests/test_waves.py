"""Tests of the options for waveforms, with the compiled gateware."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pylibfst
import pytest
import pywellen
from ddp_rnic.cli import app
from ddp_rnic.sim.capture.pcap import read_frames, write_pcap
from ddp_rnic.sim.engines.waves import CYCLE
from typer.testing import CliRunner, Result

CAPTURE = Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap"
FRAME = 77


def sim(*arguments: object, capture: Path = CAPTURE) -> Result:
    return CliRunner().invoke(app.app, ["sim", str(capture), *map(str, arguments)])


def test_a_frame_is_shown_with_files_that_open_viewers_there(tmp_path: Path) -> None:
    # The beginning of the capture needs no larger tables than the device of other tests has.
    beginning, out = tmp_path / "beginning.pcap", tmp_path / "out"
    write_pcap([*read_frames(CAPTURE)][: FRAME + 3], beginning)
    result = sim("--waves", "walker, commit", "--frame", FRAME, "--out", out, capture=beginning)
    assert result.exit_code == 0, result.output
    for name in ("waves.fst", "waves.gtkw", "waves.sucl"):
        assert f"waveform: {out / name}" in result.stdout
    reader = pylibfst.lib.fstReaderOpen(str(out / "waves.fst").encode())
    scopes, signals = pylibfst.get_scopes_signals2(reader)
    names = {name.replace(" ", "") for name in signals.by_name}
    first = pylibfst.lib.fstReaderGetStartTime(reader)
    last = pylibfst.lib.fstReaderGetEndTime(reader)
    pylibfst.lib.fstReaderClose(reader)
    gtkwave = (out / "waves.gtkw").read_text().splitlines()
    assert gtkwave[0] == '[dumpfile] "waves.fst"'
    (marker,) = [int(line.split()[1]) for line in gtkwave if line.startswith("*")]
    assert first < marker < last and last - first < 3000 * CYCLE
    shown = {line for line in gtkwave if line.startswith("rnic.")}
    assert {"rnic.clk", "rnic.m_axi_wdata[63:0]", "rnic.commit.o__valid"} <= shown <= names
    assert "rnic.commit.o__payload.placement.address[63:0]" in shown
    assert not [name for name in shown if name.startswith("rnic.walker.scan.")]
    surfer = (out / "waves.sucl").read_text()
    assert f"cursor_set {marker}\n" in surfer and "variable_add rnic.m_axi_wdata\n" in surfer
    check_for_surfer(surfer, names, set(scopes), last - first)
    check_with_wellen(out / "waves.fst", surfer, marker)


def check_with_wellen(path: Path, commands: str, marker: int) -> None:
    """Checks a waveform and a command file with Wellen, by which Surfer reads waveforms.

    Each variable that is shown is in its scopes, and the clock rises at the marker.
    """
    wave = pywellen.Waveform(str(path))
    added = re.findall("^variable_add (.+)$", commands, re.MULTILINE)
    for name in added:
        *scopes, last = name.split(".")
        place: Any = wave
        for scope in scopes:
            (place,) = [each for each in place.scopes() if each.name == scope]
        assert last in [each.name for each in place.vars()], name
    assert "rnic.clk" in added
    clock = wave["rnic.clk"].signal
    assert (clock.value_at(marker - 1), clock.value_at(marker)) == (0, 1)


def check_for_surfer(commands: str, names: set[str], scopes: set[str], length: int) -> None:
    """Checks a command file against Surfer's documentation of commands and its source.

    Its page ``docs/commands/README.md`` has these commands and arguments. ``load_file``: "it works
    to load a waveform file from a command file". ``variable_add``: "using the full path, including
    scopes"; Surfer's own ``VariableRef::from_hierarchy_string`` takes all words before the last
    dot as scopes. ``cursor_set``: "a plain integer (raw timescale ticks)". A command is a line, and
    an argument one word; ``parse_batch_commands`` splits lines at ``;`` and ends them at ``#``.

    ``Viewport`` begins with the whole waveform. ``zoom_in`` halves the view around its middle, and
    setting the cursor centres the view at the cursor if it was outside.
    """
    assert not set("#;") & set(commands)
    load, *others, cursor, go_to = [line.split(" ") for line in commands.splitlines()]
    assert load == ["load_file", "waves.fst"] and go_to == ["goto_cursor"]
    assert cursor[0] == "cursor_set" and cursor[1].isdecimal() and len(cursor) == 2
    added = [command for command in others if command != ["zoom_in"]]
    assert added == others[: len(added)]
    width = length / 2 ** (len(others) - len(added))
    assert 100 * CYCLE < width <= 200 * CYCLE
    plain = {name.partition("[")[0] for name in names}
    assert added
    for command, name in added:
        assert command == "variable_add" and name in plain
        assert name.rpartition(".")[0] in scopes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--waves", "walker,comit"],
            "--waves: the RNIC has no part 'comit': use commit .*, or all",
        ),
        (["--waves", "all", "--cycles", "7"], "--cycles must be FIRST..LAST, .*, not '7'"),
        (["--waves", "all", "--cycles", "9..7"], "--cycles must be FIRST..LAST"),
        (["--cycles", "7..9"], "--cycles needs --waves"),
        (["--frame", 3], "--frame needs --waves"),
        (["--waves", "all", "--frame", 3, "--cycles", "7..9"], "--frame .* takes no --cycles"),
        (["--waves", "all", "--frame", 2], "--frame 2: no segment .*; the first and the last"),
        (["--waves", "walker", "--engine", "cocotb"], "--engine cocotb writes waves of all"),
    ],
)
def test_bad_options_get_a_sentence(
    arguments: list[object], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sim(*arguments)
    assert result.exit_code == 2 and re.search(sentence, result.stderr), result.output
    assert not [*tmp_path.iterdir()]
