"""Tests of recordings: a session with the gateware, replayed without it."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest
from ddp_rnic.hdl.spec import regs
from ddp_rnic.sim.devices.live import Peer, SimTransport
from ddp_rnic.sw_driver import (
    CQ,
    PD,
    WC,
    Device,
    InvalidRequest,
    RnicError,
    Stream,
    StreamError,
    Transport,
    TransportError,
    TransportTimeout,
)
from ddp_rnic.sw_driver.tests.test_open import Constants
from ddp_rnic.sw_driver.transports.recorded import Recorder, Replay


def session(transport: Transport, sim: SimTransport | None, *, qn: int = 0) -> list[object]:
    """Runs a session and returns its results. With ``sim``, the peer sends there."""
    array, buffer = bytearray(3000), bytearray(2000)
    with Device(transport).open(completions=4) as context:
        pd, cq = PD(context), CQ(context)
        stream = Stream(pd, cq)
        region = pd.register(array, to=77)
        stream.post_recv(buffer, qn, wr_id="posted")
        if sim is not None:
            peer = Peer(sim, stream.number)
            peer.write(region.stag, 77 + 100, bytes(range(256)) * 8)
            peer.send(b"message" * 99, qn)
            peer.write(region.stag ^ 2, 77, b"wrong")
            sim.run(3000)
        completions: list[WC] = []
        while len(completions) < 2:
            completions += cq.wait(5)
        assert [completion.wr_id for completion in completions] == [None, "posted"]
        with pytest.raises(StreamError) as caught:
            cq.wait(5)
        stag = region.stag
        region.revoke()
    return [stag, bytes(array), bytes(buffer), str(caught.value)]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    path = tmp_path_factory.mktemp("recording") / "session.jsonl"
    sim = SimTransport(page=4096)
    with Recorder(sim, path) as recorder:
        result = session(recorder, sim)
    assert bytes(range(256)) * 8 in result[1] and b"message" * 99 in result[2]  # type: ignore[operator]
    return path, result


def test_a_recorded_session_plays_again_without_the_device(
    recording: tuple[Path, list[object]],
) -> None:
    path, result = recording
    with Replay(path) as replay:
        assert session(replay, None) == result


def test_a_driver_that_does_something_else_is_refused(
    recording: tuple[Path, list[object]],
) -> None:
    path, _ = recording
    replay = Replay(path)
    with pytest.raises(
        TransportError, match=r"the driver calls write.* but the recorded call is w"
    ):
        session(replay, None, qn=1)
    with pytest.raises(TransportError, match="record the session again"):
        replay.read(0)
    replay.close()


def test_a_driver_that_stops_early_or_goes_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.jsonl"
    sim = SimTransport()
    with Recorder(sim, path) as recorder:
        found = Device(recorder).query()
    with pytest.raises(TransportError, match=r"has 14 more calls than the driver made"):
        with Replay(path) as replay:
            replay.read(regs.address("ID"))
    replay = Replay(path)
    assert Device(replay).query() == found
    with pytest.raises(
        TransportError, match=r"no more calls, but the driver calls read\(address=0\)"
    ):
        replay.read(0)


def test_errors_and_waits_are_played_again(tmp_path: Path) -> None:
    class Failing(SimTransport):
        def write(self, address: int, value: int) -> None:
            raise TransportTimeout("the link is slow")

    def calls(transport: Transport) -> list[str]:
        texts = []
        for call in (lambda: transport.read(0xFFC), lambda: transport.write(0, 1)):
            with pytest.raises(TransportError) as caught:
                call()
            texts.append(f"{type(caught.value).__name__}: {caught.value}")
        transport.wait(0.01)
        return texts

    path = tmp_path / "errors.jsonl"
    with Recorder(Failing(), path) as recorder:
        told = calls(recorder)
    assert told[1] == "TransportTimeout: the link is slow" and "DECERR" in told[0]
    with Replay(path) as replay:
        assert calls(replay) == told


@pytest.mark.parametrize(
    "line",
    [
        "[",
        "[" * 100_000,
        "[]",
        '{"call": "reset"}',
        '{"call": ["read"], "value": 1}',
        '{"call": "read", "address": 0}',
        '{"call": "read", "address": 0, "value": "1"}',
        '{"call": "read", "address": 0, "value": 4294967296}',
        '{"call": "pin", "length": 1, "extents": [[1]]}',
        '{"call": "pin", "length": 1, "extents": [[-1, 1]]}',
        '{"call": "wait", "seconds": 1e999}',
        '{"call": "wait", "seconds": NaN}',
        '{"call": "entropy", "length": 1, "octets": "0"}',
        '{"call": "pull", "memory": 1, "offset": 0, "octets": [0]}',
        '{"call": "write", "address": 0, "value": 0, "error": 7}',
        "\ud800",
    ],
    ids=range(16),
)
def test_a_line_that_is_no_call_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "file"
    good = json.dumps({"format": 1, "of": "SimTransport"})
    path.write_bytes(f"{good}\n{line}\n".encode("utf-8", "surrogatepass"))
    with pytest.raises(InvalidRequest, match=r"is not a recording of a session: line \d: "):
        Replay(path)


@pytest.mark.parametrize("name", ["none", "."])
def test_a_recording_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read: "):
        Replay(tmp_path / name)


def test_a_recording_that_is_spoilt_is_refused_or_differs(tmp_path: Path) -> None:
    """Whatever a damaged file holds, the driver raises one of its own errors, or none."""
    path = tmp_path / "file"
    with Recorder(SimTransport(), path) as recorder:
        Device(recorder).query()
    good = path.read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(400):
        octets = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at, length = rng.randrange(len(octets)), rng.choice((0, 1, 1, 8))
            octets[at : at + length] = rng.choice((b"", b"9", b"-", b"[", b'"', b"\xff", b"null"))
        path.write_bytes(bytes(octets))
        try:
            with Replay(path) as replay:
                Device(replay).query()
        except RnicError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("text", ["", "not json\n", "[]\n", json.dumps({"format": 99})])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest, match="is not a recording of a session"):
        Replay(path)


def test_closing_a_recording_ends_the_calls_of_other_threads(tmp_path: Path) -> None:
    errors: list[str] = []

    def wait() -> None:
        waiting.set()
        try:
            while True:
                recorder.wait(0.001)
        except TransportError as error:
            errors.append(str(error))

    waiting = threading.Event()
    recorder = Recorder(Constants(), tmp_path / "session.jsonl")
    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait(20)
    recorder.close()
    thread.join(20)
    assert errors == ["the transport is closed"]
    with pytest.raises(TransportError, match="the transport is closed"):
        recorder.read(0)
