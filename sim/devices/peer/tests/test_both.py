"""Two devices that send and receive work with each other; planted bugs of each kind are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ddp_rnic.cli import app, outcome
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.sim.devices.peer import both
from ddp_rnic.sim.devices.peer.lockstep import DataSink
from ddp_rnic.sim.model.events import Delivered
from typer.testing import CliRunner


@pytest.mark.parametrize("width, messages", [(64, 1200), *long((64, 50_000), (512, 10_000))])
def test_two_devices_agree_with_each_other_and_with_the_model(width: int, messages: int) -> None:
    done: list[tuple[int, int]] = []
    tally = both.play(width, 3, messages, progress=lambda *now: done.append(now))
    assert tally.failure is None
    assert tally.messages >= messages and done[-1] == (messages, messages)
    assert tally.messages == tally.kinds.total() and len(tally.kinds) == 3
    assert tally.errors.total() >= 1 and tally.connections > tally.errors.total()
    assert tally.octets > 1000 * messages and tally.cycles * width // 8 > tally.octets


def other_octets(bugs: pytest.MonkeyPatch) -> None:
    body = both._End._body

    def wrong(end: Any, length: int) -> Any:
        buffer, part, octets = body(end, length)
        return buffer, part, octets[:-1] + bytes((octets[-1] ^ 1,)) if octets else octets

    bugs.setattr(both._End, "_body", wrong)


def other_memory(bugs: pytest.MonkeyPatch) -> None:
    write = both._End._write

    def wrong(end: Any, peer: Any, number: int) -> None:
        write(end, peer, number)
        peer.written[-1] ^= 1

    bugs.setattr(both._End, "_write", wrong)


def other_source(bugs: pytest.MonkeyPatch) -> None:
    read = both._End._read

    def wrong(end: Any, peer: Any, number: int) -> None:
        read(end, peer, number)
        number, length, sink, octets = end._requests.pop()
        end._requests.append((number, length, sink, octets[::-1]))

    bugs.setattr(both._End, "_read", wrong)


def a_model_that_delivers_nothing(bugs: pytest.MonkeyPatch) -> None:
    receive = DataSink.receive

    def wrong(sink: DataSink, ulpdu: bytes) -> Any:
        return [each for each in receive(sink, ulpdu) if not isinstance(each, Delivered)]

    bugs.setattr(DataSink, "receive", wrong)


@pytest.mark.parametrize(
    "plant, says",
    [
        (other_octets, "arrived as another one"),
        (other_memory, "Writes have left other octets"),
        (other_source, "octets got others"),
        (a_model_that_delivers_nothing, "gateware and golden model differ in completions"),
    ],
)
def test_a_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    tally = both.play(64, 3, 200)
    assert tally.failure is not None and says in tally.failure.message


def test_the_command_says_what_was_played() -> None:
    arguments = "soak --both --segments 150 --width 64 --seed 5".split()
    result = CliRunner().invoke(app.app, arguments)
    assert result.exit_code == outcome.AGREES, result.output
    assert result.stdout.startswith("seed 5\n64 bits: agree on 1")


def test_the_command_says_how_to_play_a_failure_again(monkeypatch: pytest.MonkeyPatch) -> None:
    other_octets(monkeypatch)
    arguments = "soak --both --segments 150 --width 64 --seed 5".split()
    result = CliRunner().invoke(app.app, arguments)
    assert result.exit_code == outcome.DIFFERS
    assert "again: rnic soak --both --seed 5 --width 64 --chunk 0" in result.stdout
    assert "64 bits: differ on" in result.stdout


def test_the_command_refuses_what_two_devices_do_not_have() -> None:
    result = CliRunner().invoke(app.app, ["soak", "--both", "--bus-errors"])
    assert result.exit_code == 2
    assert "--both takes --segments, --width, --seed and --chunk alone" in result.output
