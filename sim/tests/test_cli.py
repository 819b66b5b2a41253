"""``rnic sim``: what it prints, writes and exits with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from ddp_rnic.sim import cli
from ddp_rnic.sim.engine import DeviceError, Outcome, ToolError
from ddp_rnic.sim.tests.fake_engine import FakeEngine
from ddp_rnic.sim.tests.frames import frames, handshake
from ddp_rnic.sim.workload import SHIPPED, generate, write_pcap
from typer.testing import CliRunner, Result

SHIPPED_CAPTURE = Path(__file__).resolve().parents[1] / "data" / "workload.pcap"


class Ground:
    """The command with a stand-in for the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = FakeEngine()
        self.asked: list[str] = []
        monkeypatch.setattr(cli, "load", self._load)

    def _load(self, name: str) -> FakeEngine:
        self.asked.append(name)
        return self.engine

    def __call__(self, *arguments: object) -> Result:
        return CliRunner().invoke(cli.app, ["sim", *map(str, arguments)])


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(monkeypatch)


def test_the_shipped_capture_agrees(sim: Ground, tmp_path: Path) -> None:
    result = sim(SHIPPED_CAPTURE, "--width", 512, "--out", tmp_path / "out")
    assert result.exit_code == 0 and not result.stderr
    assert "agree: RTL and golden model agree" in result.stdout
    assert "Regions (derived from the capture)" in result.stdout
    assert sim.asked == ["compiled"] and sim.engine.configs[0].width == 512

    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict"] == "agree" and report["width"] == 512 and report["errors"] == 4
    for total, part in (
        ("segments", "segments"),
        ("bytes_placed", "bytes_placed"),
        ("errors", "errors"),
        ("exceptions", "exceptions"),
        ("dropped", "dropped"),
    ):
        assert report[total] == sum(stream[part] for stream in report["streams"]) > 0
    assert report["cycles"] > 0


def test_memory_files_hold_the_regions(sim: Ground, tmp_path: Path) -> None:
    workload = generate(**SHIPPED)
    text = "".join(
        f'[[region]]\nendpoint = "{each.endpoint}"\nstag = {each.stag}\nto = {each.to}\n'
        f"length = {each.length}\nfill = {each.fill}\n"
        for each in workload.regions
    )
    (tmp_path / "regions.toml").write_text(text)
    result = sim(SHIPPED_CAPTURE, "--regions", tmp_path / "regions.toml", "--out", tmp_path)
    assert result.exit_code == 0 and "Regions (given)" in result.stdout
    index = json.loads((tmp_path / "memory" / "index.json").read_text())
    assert len(index) == len(workload.regions)
    files = {
        (each["endpoint"], each["stag"], each["to"], each["length"]): each["file"] for each in index
    }
    for region, octets in workload.octets.items():
        name = files[region.endpoint, region.stag, region.to, region.length]
        assert (tmp_path / "memory" / name).read_bytes() == octets


def test_without_a_capture_a_workload_is_played(sim: Ground) -> None:
    result = sim("--engine", "cocotb")
    assert result.exit_code == 0 and "generated workload" in result.stdout
    assert sim.asked == ["cocotb"]


def test_a_difference_exits_1_and_says_how_to_see_it(sim: Ground, tmp_path: Path) -> None:
    def spoil(memory: np.ndarray, outcome: Outcome) -> None:
        memory[0] ^= 1

    sim.engine.spoil = spoil
    result = sim(SHIPPED_CAPTURE, "--out", tmp_path)
    assert result.exit_code == 1
    assert "difference in guard octets at host address 0x0" in result.stdout
    capture = shlex.quote(str(SHIPPED_CAPTURE))
    assert f"waveform command: rnic sim {capture} --width 64" in result.stdout
    assert result.stdout.rstrip().endswith("--waves")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "differ" and report["differences"][0]["what"] == "guard octets"


def test_waves_are_written_where_it_says(sim: Ground, tmp_path: Path) -> None:
    result = sim(SHIPPED_CAPTURE, "--waves", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert f"waveform: {tmp_path / 'out' / 'waves.vcd'}" in result.stdout
    assert (tmp_path / "out" / "waves.vcd").exists()


def capture_file(tmp_path: Path, packets: list[bytes]) -> Path:
    write_pcap(tuple(frames(packets)), tmp_path / "test.pcap")
    return tmp_path / "test.pcap"


@pytest.mark.parametrize(
    "case",
    [
        "missing",
        "no capture",
        "directory",
        "no DDP",
        "empty",
        "half",
        "width",
        "regions",
        "overlap",
        "out",
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(sim: Ground, tmp_path: Path, case: str) -> None:
    out = tmp_path / "out"
    arguments: list[object] = [SHIPPED_CAPTURE]
    (tmp_path / "file").write_text("text")
    match case:
        case "missing":
            arguments = [tmp_path / "nothing.pcap"]
        case "no capture":
            arguments = [tmp_path / "file"]
        case "directory":
            arguments = [tmp_path]
        case "no DDP":
            arguments = [capture_file(tmp_path, handshake())]
        case "empty":
            arguments = [capture_file(tmp_path, [])]
        case "half":
            arguments = [capture_file(tmp_path, handshake()[4:])]
        case "width":
            arguments += ["--width", 100]
        case "regions":
            arguments += ["--regions", tmp_path / "nothing.toml"]
        case "overlap":
            table = '[[region]]\nendpoint = "10.7.0.2"\nstag = 1\nto = 0\nlength = 9\n'
            (tmp_path / "regions.toml").write_text(table + table)
            arguments += ["--regions", tmp_path / "regions.toml"]
        case "out":
            out = tmp_path / "file"
    result = sim(*arguments, "--out", out)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("rnic: ") and result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ToolError("no compiler is here"), 3),
        (DeviceError("no progress"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_other_ends_have_their_own_exit_code(
    sim: Ground, tmp_path: Path, error: BaseException, code: int
) -> None:
    def fail(memory: np.ndarray, outcome: Outcome) -> None:
        raise error

    sim.engine.spoil = fail
    result = sim(SHIPPED_CAPTURE, "--out", tmp_path / "out")
    assert result.exit_code == code and result.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "report.json").exists()


def test_an_unknown_option_is_bad_input(sim: Ground) -> None:
    assert sim("--no-such-option").exit_code == 2
    assert sim("--engine", "steam").exit_code == 2
