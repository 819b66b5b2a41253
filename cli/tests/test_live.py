"""Tests of ``rnic sim -`` on a pipe that is still being written, and of Ctrl-C during reading."""

from __future__ import annotations

import json
import os
import re
import signal
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import zstandard
from ddp_rnic.cli import app, inputs, playing
from ddp_rnic.cli import sim as command
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.sim.capture import capture, piped
from ddp_rnic.sim.capture.pcap import Frame, read_frames, write_pcap
from ddp_rnic.sim.capture.piped import Piped
from ddp_rnic.sim.capture.tests.associations import A, Peers
from ddp_rnic.sim.engines.engine import Outcome
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.replay import plan
from ddp_rnic.sim.replay.workload import SHIPPED as WORKLOAD
from ddp_rnic.sim.replay.workload import generate
from typer.testing import CliRunner, Result

SHIPPED = Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap"


class Pipe:
    """The command with a pipe as its standard input, and a stand-in for the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = FakeEngine()
        self.lines: list[str] = []
        self.said: Callable[[], None] = lambda: None
        self._line = Event()
        self._patch = monkeypatch
        monkeypatch.setattr(command, "load", lambda name: self.engine)
        monkeypatch.setattr(playing, "say", self._say)

    def _say(self, line: str) -> None:
        self.lines.append(line)
        self.said()
        self._line.set()

    def wait(self) -> None:
        """Waits for the next line about the segments played."""
        assert self._line.wait(30), "nothing was reported"
        self._line.clear()

    def __call__(self, pieces: Iterator[bytes], *arguments: object) -> Result:
        """Runs the command; each piece is written when it is asked for."""
        end, pipe = os.pipe()
        failed: list[BaseException] = []

        def write() -> None:
            try:
                with open(pipe, "wb", buffering=0) as file:
                    for piece in pieces:
                        file.write(piece)
            except BaseException as error:
                failed.append(error)

        given = Piped(end)
        self._patch.setattr(piped, "_standard_input", lambda: given)
        writer = Thread(target=write)
        writer.start()
        result = CliRunner().invoke(app.app, ["sim", "-", *map(str, arguments)])
        writer.join(30)
        assert not failed, failed
        return result


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Pipe:
    return Pipe(monkeypatch)


@pytest.fixture(autouse=True)
def _on_a_terminal() -> Iterator[None]:
    """Lets Ctrl-C act as on a terminal, even if the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def of_file(path: Path, *arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app.app, ["sim", str(path), "--json", *map(str, arguments)])
    return json.loads(result.stdout) | {"source": "standard input"}


def plainly() -> Callable[[bytes], bytes]:
    return bytes


def by_gzip() -> Callable[[bytes], bytes]:
    packing = zlib.compressobj(wbits=31)
    return lambda octets: packing.compress(octets) + packing.flush(zlib.Z_SYNC_FLUSH)


def by_zstd() -> Callable[[bytes], bytes]:
    packing = zstandard.ZstdCompressor().compressobj()
    flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    return lambda octets: packing.compress(octets) + packing.flush(flush)


@pytest.mark.parametrize("packed", [plainly, *long(by_gzip, by_zstd)])
def test_a_piece_is_played_before_the_next_one_is_written(
    pipe: Pipe, packed: Callable[[], Callable[[bytes], bytes]]
) -> None:
    pack, octets = packed(), SHIPPED.read_bytes()

    def pieces() -> Iterator[bytes]:
        for at in range(0, len(octets), 40_000):
            yield pack(octets[at : at + 40_000])
            pipe.wait()

    result = pipe(pieces(), "--json")
    # gzip and zstd end here within a member or frame, which is left out of the result.
    found = json.loads(result.stdout)
    if packed is not plainly:
        (left,) = found["left_out"]
        assert "its compressed data is damaged" in left["reason"]
        found |= {"left_out": [], "verdict": "agree"}
    assert found == of_file(SHIPPED)
    assert len(pipe.lines) >= len(octets) // 40_000
    assert all(re.match(r"frames \d+ to \d+: agree: \d+ segments? placed", line)
               for line in pipe.lines)  # fmt: skip
    placed = sum(int(re.findall(r"(\d+) segments? placed", line)[0]) for line in pipe.lines)
    assert placed == 209


def in_pieces(pipe: Pipe, octets: bytes, size: int) -> Iterator[bytes]:
    """Yields pieces of the octets, the next one once the last one was reported."""
    for at in range(0, len(octets), size):
        yield octets[at : at + size]
        pipe.wait()


def table(endpoint: str, stag: int, to: int, length: int, rest: str = "") -> str:
    return (
        f'[[region]]\nendpoint = "{endpoint}"\nstag = {stag}\nto = {to}\nlength = {length}\n{rest}'
    )


@pytest.mark.parametrize("until", [*long(None), 60])
def test_given_regions_are_registered_for_the_same_segments(
    pipe: Pipe, tmp_path: Path, until: int | None
) -> None:
    """Counts of segments go through all pieces, and a Send with Invalidate holds for the later."""
    rest = "" if until is None else f"revoke_after_segment = {until}\n"
    given = tmp_path / "regions.toml"
    given.write_text("".join(
        table(each.endpoint, each.stag, each.to, each.length, rest)
        for each in generate(**WORKLOAD).regions
    ))  # fmt: skip
    options = "--json", "--regions", given
    found = json.loads(pipe(in_pieces(pipe, SHIPPED.read_bytes(), 9_000), *options).stdout)
    assert found == of_file(SHIPPED, "--regions", given)
    refused = sum(each["text"] == "0x1/0x00 Invalid STag" for each in found["refused"])
    assert refused > 1 if until else refused == 1
    assert sum(line.count("0x1/0x00") for line in pipe.lines) == refused
    placed = sum(int(re.findall(r"(\d+) segments? placed", line)[0]) for line in pipe.lines)
    assert placed == sum(each["segments_placed"] for each in found["streams"])


def test_a_named_pipe_and_regions_from_a_pipe_are_those_of_files(
    pipe: Pipe, tmp_path: Path
) -> None:
    given = tmp_path / "queues.toml"
    given.write_text('[[queue]]\nendpoint = "10.7.0.2"\nqn = 0\ncount = 1\n')
    pipes = tmp_path / "capture", tmp_path / "regions"
    for fifo, file in zip(pipes, (SHIPPED, given), strict=True):
        os.mkfifo(fifo)
        Thread(target=fifo.write_bytes, args=[file.read_bytes()]).start()
    result = of_file(pipes[0], "--regions", pipes[1])
    assert result == of_file(SHIPPED, "--regions", given)


def test_given_buffers_wait_for_the_end_of_the_pipe(pipe: Pipe, tmp_path: Path) -> None:
    given = tmp_path / "queues.toml"
    given.write_text('[[queue]]\nendpoint = "10.7.0.2"\nqn = 0\ncount = 1\n')
    pipe(iter([SHIPPED.read_bytes()]), "--regions", given)
    (line,) = pipe.lines
    assert line == (
        "played at the end of the pipe, because the buffers in"
        f" {given} are counted from the first message on"
    )


def test_sctp_waits_for_the_end_of_the_pipe(pipe: Pipe, tmp_path: Path) -> None:
    peers = Peers()
    peers.set_up()
    peers.open(1)
    peers.send(A, peers.write(A, 1, 0x100, 5, b"text"))
    write_pcap(tuple(peers.frames), tmp_path / "sctp.pcap")
    octets = (tmp_path / "sctp.pcap").read_bytes()
    result = pipe(in_pieces(pipe, octets, len(octets)), "--json")
    assert json.loads(result.stdout) == of_file(tmp_path / "sctp.pcap")
    (line,) = pipe.lines
    assert line == (
        "played at the end of the pipe, because the sessions of SCTP are found in the"
        " capture as a whole"
    )


def test_a_difference_is_not_forgotten(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """RTL and golden model differ in the first piece alone."""
    run = pipe.engine.run

    def spoilt(config: Any, operations: Any, memory: Any, *rest: Any, **how: Any) -> Outcome:
        outcome = run(config, operations, memory, *rest, **how)
        monkeypatch.setattr(pipe.engine, "run", run)
        outcome.counters["DROPPED"] += 1
        return outcome

    monkeypatch.setattr(pipe.engine, "run", spoilt)
    result = pipe(in_pieces(pipe, SHIPPED.read_bytes(), 50_000), "--json")
    assert json.loads(result.stdout)["verdict"] == "agree" and result.exit_code == 1
    assert ": differ: " in pipe.lines[0] and "difference in counter" in result.stderr
    assert "differed while the capture was being written" in result.stderr


# -- Ctrl-C during the reading --


def test_ctrl_c_ends_the_pipe(pipe: Pipe) -> None:
    octets = SHIPPED.read_bytes()
    ended = Event()

    def pieces() -> Iterator[bytes]:
        yield octets[:50_000]
        ended.wait(30)

    pipe.said = lambda: signal.raise_signal(signal.SIGINT)
    finish = pipe.engine.run
    runs = 0

    def run(*rest: Any, **how: Any) -> Outcome:
        nonlocal runs
        runs += 1
        if runs == 2:  # the result is played although the pipe is still open
            ended.set()
        return finish(*rest, **how)

    pipe.engine.run = run  # type: ignore[method-assign]
    result = pipe(pieces(), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 130 and result.stderr == "rnic: interrupted\n" and runs == 2
    (left,) = (each for each in found["left_out"] if each["what"] == "rest of the capture")
    assert left["reason"].startswith("not read, because of an interrupt after frame ")
    assert 0 < found["segments"] < 236 and found["verdict"] == "agree on what was played"


def interrupt_at(number: int) -> Callable[..., Iterator[Frame]]:
    """Returns a reader of frames that gets Ctrl-C before the frame of this number."""

    def read(*arguments: Any) -> Iterator[Frame]:
        for frame in read_frames(*arguments):
            if frame.number == number:
                signal.raise_signal(signal.SIGINT)
            yield frame

    return read


def test_ctrl_c_while_a_file_is_read_plays_what_was_read(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(capture, "read_frames", interrupt_at(150))
    result = CliRunner().invoke(app.app, ["sim", str(SHIPPED), "--out", str(tmp_path)])
    assert result.exit_code == 130 and result.stderr == "rnic: interrupted\n"
    assert "not read, because of an interrupt after frame 149" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    write_pcap([*read_frames(SHIPPED)][:149], tmp_path / "beginning.pcap")
    whole = of_file(tmp_path / "beginning.pcap")
    assert report["segments"] == whole["segments"] > 0
    assert report["regions"] == whole["regions"] and (tmp_path / "explorer.html").exists()


def test_ctrl_c_before_anything_can_be_played(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "read_frames", interrupt_at(2))
    result = CliRunner().invoke(app.app, ["sim", str(SHIPPED)])
    assert result.exit_code == 130 and not result.stdout
    assert "not read, because of an interrupt after frame 1" in result.stderr


def test_ctrl_c_while_regions_are_derived_leaves_a_report(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive = inputs.derive_all

    def derived(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return derive(*arguments)

    monkeypatch.setattr(inputs, "derive_all", derived)
    monkeypatch.setattr(plan, "_AHEAD", 0)
    result = CliRunner().invoke(app.app, ["sim", str(SHIPPED), "--json"])
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    (left,) = found["left_out"]
    assert left["reason"].startswith("not played, because of an interrupt after frame ")
    assert found["segments"] + left["count"] == 236
