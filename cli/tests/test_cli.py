"""Tests of ``rnic sim``: its output, its files, its exit codes."""

from __future__ import annotations

import json
import re
import shlex
import struct
from pathlib import Path

import jschon
import numpy as np
import pytest
from ddp_rnic import __version__
from ddp_rnic.cli import app
from ddp_rnic.cli import sim as command
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.sim.capture.pcap import Frame, write_pcap
from ddp_rnic.sim.capture.tests.associations import Peers
from ddp_rnic.sim.capture.tests.frames import A, B, first_octet, frames, handshake, tcp_packet
from ddp_rnic.sim.engines.engine import DeviceError, Outcome
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.model.mpa import MpaSender
from ddp_rnic.sim.replay.workload import SHIPPED, generate
from ddp_rnic.sim.reports import report
from typer.testing import CliRunner, Result

SHIPPED_CAPTURE = Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap"


class Ground:
    """The command with a stand-in for the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = FakeEngine()
        self.asked: list[str] = []
        monkeypatch.setattr(command, "load", self._load)

    def _load(self, name: str) -> FakeEngine:
        self.asked.append(name)
        return self.engine

    def __call__(self, *arguments: object) -> Result:
        return CliRunner().invoke(app.app, ["sim", *map(str, arguments)])


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Ground:
    return Ground(monkeypatch)


def test_the_shipped_capture_agrees(sim: Ground, tmp_path: Path) -> None:
    result = sim(SHIPPED_CAPTURE, "--width", 512, "--out", tmp_path / "out")
    assert result.exit_code == 0 and not result.stderr
    assert re.search(r"agree: \d+ segments placed, 9 refused \(0x", result.stdout)
    assert "Regions (derived from the capture)" in result.stdout
    assert sim.asked == ["compiled"] and sim.engine.configs[0].width == 512

    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["verdict"] == "agree" and report["width"] == 512 and report["errors"] == 9
    for total, part in (
        ("segments", "segments"),
        ("bytes_placed", "bytes_placed"),
        ("deliveries", "deliveries"),
        ("errors", "errors"),
        ("exceptions", "exceptions"),
        ("dropped", "dropped"),
    ):
        assert report[total] == sum(stream[part] for stream in report["streams"]) > 0
    assert report["cycles"] > 0
    assert f"{report['deliveries']} messages delivered" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [["sim", "--out", ""], ["sim", "--out="], ["peer", "demo", "--against", ""], ["sim", ""]],
)
def test_an_empty_value_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app.app, arguments)
    assert result.exit_code == 2 and not result.stdout
    before = next((word for word in arguments if word == "--out="), arguments[-2])
    assert result.stderr == f"rnic: the value after {before} is empty\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["soak", "--sctp"], "--sctp, --loss, --duplication and --reorder need --both"),
        (["peer", "serve", "rping", "--size", "1M"], "--size is that of the nvme disk, which rp"),
        (["prm", "sim", "--share", "stags=-1"], "the share of stags must be a number, not '-1'"),
        (["bench", "--plots", str(SHIPPED_CAPTURE)], f"--plots {SHIPPED_CAPTURE}: File exists"),
    ],
)
def test_options_are_refused_before_any_output(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app.app, arguments)
    assert result.exit_code == 2 and not result.stdout
    assert result.stderr.startswith(f"rnic: {sentence}")


def test_the_frame_that_the_pages_explain_has_a_segment() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "capture.md").read_text()
    found = {*re.findall(r"(?:explain CAPTURE|--frame|explorer.html#) ?(\d+)", page)}
    (number,) = found
    result = CliRunner().invoke(app.app, ["explain", str(SHIPPED_CAPTURE), number])
    assert result.exit_code == 0 and result.stdout.startswith(f"Frame {number}, ")


def test_received_messages_are_written_in_order_of_delivery(sim: Ground, tmp_path: Path) -> None:
    result = sim(SHIPPED_CAPTURE, "--out", tmp_path)
    assert result.exit_code == 0 and "Untagged queues" in result.stdout
    index = json.loads((tmp_path / "receives" / "index.json").read_text())
    report = json.loads((tmp_path / "report.json").read_text())
    received: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
    for stream in report["streams"]:
        mine = [each for each in index if each["stream"] == stream["stream"]]
        assert len(mine) == stream["receives"] <= stream["deliveries"]
        for each in mine:
            assert each["endpoint"] in stream["destination"]
        received[stream["source"], stream["destination"]] = messages = []
        for qn in range(4):
            msns = [each["msn"] for each in mine if each["qn"] == qn]
            assert msns == list(range(1, len(msns) + 1))
        for each in mine:
            octets = (tmp_path / "receives" / each["file"]).read_bytes()
            assert set(each) == {"endpoint", "stream", "qn", "msn", "length", "file"}
            assert len(octets) == each["length"]
            messages.append((each["qn"], octets))
    sent = generate(**SHIPPED).messages
    assert received == {(str(a), str(b)): messages for (a, b), messages in sent.items()}
    assert len({each["file"] for each in index}) == len(index)


def test_a_receive_has_the_octets_that_the_rtl_placed(sim: Ground, tmp_path: Path) -> None:
    def spoil(memory: np.ndarray, outcome: Outcome) -> None:
        number = next(n for n, each in enumerate(outcome.completions) if each.length == 100)
        outcome.completions[number] = outcome.completions[number]._replace(length=99)

    sim.engine.spoil = spoil
    messages = [struct.pack(">BBIIII", 0x41, 0x43, 0, 0, 1, 0) + bytes(range(100))]
    octets = b"".join(MpaSender().send(message) for message in messages)
    packets = [*handshake(), tcp_packet(A, B, first_octet(1000), octets)]
    result = sim(capture_file(tmp_path, packets), "--out", tmp_path)
    assert result.exit_code == 1
    assert "difference in length of a completion at completion 1, stream 0" in result.stdout
    (entry,) = json.loads((tmp_path / "receives" / "index.json").read_text())
    assert entry["length"] == 99
    assert (tmp_path / "receives" / entry["file"]).read_bytes() == bytes(range(99))


def test_given_queues_reproduce_a_refusal(sim: Ground, tmp_path: Path) -> None:
    tables = [
        f'[[queue]]\nendpoint = "10.7.0.2"\nqn = {qn}\ncount = {count}\nlength = 8\n'
        for qn, count in ((0, 1), (3, 0))
    ]
    (tmp_path / "queues.toml").write_text("".join(tables))
    result = sim(SHIPPED_CAPTURE, "--regions", tmp_path / "queues.toml", "--out", tmp_path)
    # The regions are derived all the same.
    assert result.exit_code == 0 and "Regions (derived from the capture)" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    for stream in report["streams"]:
        if stream["destination"].startswith("10.7.0.2"):
            (event,) = stream["error_events"]
            assert (event["type"], event["code"]) in ((2, 2), (2, 5))
    assert not any(
        each["endpoint"] == "10.7.0.2" and (each["qn"] == 3 or each["length"] > 8)
        for each in json.loads((tmp_path / "receives" / "index.json").read_text())
    )


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
    assert result.stdout.rstrip().endswith("--waves all")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "differ" and report["differences"][0]["what"] == "guard octets"


def test_ddp_over_sctp_is_played_beside_mpa(sim: Ground, tmp_path: Path) -> None:
    peers = Peers(a="10.9.0.1", b="10.9.0.2")
    peers.set_up()
    for number in range(2):
        peers.open(3)
        peers.send(
            "10.9.0.1",
            peers.write("10.9.0.1", 3, 0x100 + number, 0, bytes([number]) * 9),
            peers.message("10.9.0.1", 3, bytes(number + 5)),
        )
        peers.close(3)
    both = [each.octets for each in generate(**SHIPPED).frames]
    for number, each in enumerate(peers.frames):
        both.insert(50 * number, each.octets)
    path = tmp_path / "both.pcap"
    write_pcap(tuple(Frame(n, n * 1e-3, 1, each) for n, each in enumerate(both, 1)), path)
    result = sim(path, "--out", tmp_path)
    assert result.exit_code == 0, result.stdout
    assert "SCTP frames" in result.stdout and "SCTP stream 3" in result.stdout
    assert "stream 3, session 1" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["frames"] == len(peers.frames) and report["packets"] == report["frames"] - 2
    (stream,) = [each for each in report["streams"] if each.get("sessions") and each["segments"]]
    assert stream["destination"] == "10.9.0.2:5043" and stream["sctp_stream"] == 3
    assert (stream["sessions"], stream["segments"], stream["duplicates"]) == (2, 4, 0)
    assert (stream["deliveries"], stream["receives"]) == (4, 2)
    index = json.loads((tmp_path / "memory" / "index.json").read_text())
    found = {(each["stream"], each["session"]): each for each in index if "session" in each}
    assert list(found) == [(3, 0), (3, 1)]
    for number, each in enumerate(found.values()):
        assert (tmp_path / "memory" / each["file"]).read_bytes() == bytes([number]) * 9
    received = json.loads((tmp_path / "receives" / "index.json").read_text())
    mine = [each for each in received if "session" in each]
    assert [(each["stream"], each["session"], each["length"]) for each in mine] == [
        (3, 0, 5),
        (3, 1, 6),
    ]
    # Traffic over MPA is the same as without SCTP.
    alone = sim(SHIPPED_CAPTURE, "--out", tmp_path / "alone")
    assert alone.exit_code == 0
    before = json.loads((tmp_path / "alone" / "report.json").read_text())["streams"]
    assert report["streams"][: len(before)] == before


def test_a_region_file_serves_sessions(sim: Ground, tmp_path: Path) -> None:
    peers = Peers()
    peers.set_up()
    peers.open(1)
    peers.send(A[0], peers.write(A[0], 1, 0x100, 5, b"text"))
    path = tmp_path / "sctp.pcap"
    write_pcap(tuple(peers.frames), path)
    (tmp_path / "regions.toml").write_text(
        f'[[region]]\nendpoint = "{B[0]}"\nstag = 0x100\nto = 0\nlength = 10\nfill = 0xEE\n'
        "stream = 1\nsession = 0\n"
    )
    result = sim(path, "--regions", tmp_path / "regions.toml", "--out", tmp_path)
    assert result.exit_code == 0 and "Regions (given)" in result.stdout
    (entry,) = json.loads((tmp_path / "memory" / "index.json").read_text())
    assert (entry["stream"], entry["session"]) == (1, 0)
    octets = (tmp_path / "memory" / entry["file"]).read_bytes()
    assert octets == b"\xee" * 5 + b"text" + b"\xee"


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
        "no DDP over SCTP",
        "empty",
        "half",
        "width",
        "regions",
        "overlap",
        "queues",
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
        case "no DDP over SCTP":
            peers = Peers(adaptations=(1, None))
            peers.set_up()
            peers.open(0)
            write_pcap(tuple(peers.frames), tmp_path / "test.pcap")
            arguments = [tmp_path / "test.pcap"]
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
        case "queues":
            table = '[[queue]]\nendpoint = "10.7.0.2"\nqn = 0\ncount = 9999\nlength = 999999\n'
            (tmp_path / "regions.toml").write_text(table)
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


def test_a_second_report_in_a_directory_replaces_the_files_of_the_first(
    sim: Ground, tmp_path: Path
) -> None:
    octets = MpaSender().send(struct.pack(">BBIIII", 0x41, 0x43, 0, 0, 1, 0) + bytes(8))
    packets = [*handshake(), tcp_packet(A, B, first_octet(1000), octets)]
    out = tmp_path / "out"
    assert sim(SHIPPED_CAPTURE, "--out", out).exit_code == 0
    (out / "memory" / "own").write_text("of the user")
    assert sim(capture_file(tmp_path, packets), "--out", out).exit_code == 0
    for name, own in (("memory", {"own"}), ("receives", set[str]())):
        folder = out / name
        index = json.loads((folder / "index.json").read_text())
        named = {"index.json", *(each["file"] for each in index)}
        assert {each.name for each in folder.iterdir()} == named | own
    (out / "memory" / "index.json").write_text("{")
    assert sim(SHIPPED_CAPTURE, "--out", out).exit_code == 0


def test_a_directory_that_cannot_be_made_is_bad_input(sim: Ground, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = sim(SHIPPED_CAPTURE, "--out", tmp_path / "file" / "below")
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "file is a file, not a directory" in result.stderr


def test_an_unknown_option_is_bad_input(sim: Ground) -> None:
    assert sim("--no-such-option").exit_code == 2
    assert sim("--engine", "steam").exit_code == 2


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app.app, ["--version"])
    assert result.exit_code == 0 and result.stdout == f"rnic {__version__}\n"


@pytest.mark.filterwarnings("ignore:.*rfc3986:DeprecationWarning")
def test_the_verdict_names_what_was_refused_and_json_is_as_its_schema_says(
    sim: Ground, tmp_path: Path
) -> None:
    result = sim(SHIPPED_CAPTURE, "--json", "--out", tmp_path)
    told = json.loads(result.stdout)
    assert result.exit_code == 0 and told == json.loads((tmp_path / "report.json").read_text())
    first = told["refused"][0]
    assert first["text"].endswith("Invalid STag") and len(told["refused"]) == told["errors"]
    last = sim(SHIPPED_CAPTURE).stdout.splitlines()[-1]
    placed = sum(stream["segments_placed"] for stream in told["streams"])
    named = f"agree: {placed} segments placed, 9 refused ({first['text']}, frame {first['frame']}; "
    assert last.startswith(named) and ", and 5 more)" in last

    jschon.create_catalog("2020-12")
    text = (Path(report.__file__).parent / "report.schema.json").read_text()
    schema = jschon.JSONSchema(json.loads(text), catalog="catalog")
    assert schema.evaluate(jschon.JSON(told)).valid
    assert told.keys() <= schema["properties"].keys()
    told["refused"][0]["frame"] = "none"
    assert not schema.evaluate(jschon.JSON(told)).valid
