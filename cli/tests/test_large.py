"""Tests of ``rnic sim`` on captures that are played piece by piece, and of Ctrl-C meanwhile."""

from __future__ import annotations

import json
import re
import signal
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rnic.cli import app, playing
from ddp_rnic.cli import sim as command
from ddp_rnic.cli.inputs import Asked, read_input
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.capture import spool
from ddp_rnic.sim.capture.pcap import Frame, write_pcap
from ddp_rnic.sim.capture.tests.associations import Peers
from ddp_rnic.sim.capture.tests.streams import SEND, Conversation
from ddp_rnic.sim.capture.tests.test_spool import talk
from ddp_rnic.sim.engines import compiled
from ddp_rnic.sim.engines.compiled import CompiledEngine
from ddp_rnic.sim.engines.engine import Engine, Operation, Outcome, Packet
from ddp_rnic.sim.engines.tests.fake_engine import FakeEngine
from ddp_rnic.sim.replay import differences, plan, sending
from ddp_rnic.sim.replay.expectation import Expected
from ddp_rnic.sim.replay.host import guard_octets
from ddp_rnic.sim.reports import explorer, one_frame, outline, record
from ddp_rnic.sim.reports.one_frame import FrameCycles
from ddp_rnic.sim.reports.report import Run
from ddp_rnic.sim.reports.tests.test_explorer import unpacked
from ddp_rnic.sim.reports.timeline import Segment, segments
from typer.testing import CliRunner, Result

SHIPPED = Path(__file__).resolve().parents[2] / "sim" / "data" / "workload.pcap"


class Spoiling(CompiledEngine):
    """Inverts an octet of memory, and a field of a completion, on their way to the comparison."""

    def run(self, config: Any, operations: Any, memory: Any, **options: Any) -> Outcome:
        forgets = options["part"]
        completions = 0  # that were dropped

        def spoil(outcome: Outcome) -> None:
            for at, each in enumerate(outcome.completions, completions):
                if at == 100:
                    outcome.completions[at - completions] = each._replace(cookie=each.cookie ^ 1)

        def part(outcome: Outcome) -> bool:
            nonlocal completions
            spoil(outcome)
            if not forgets(outcome):
                return False
            completions += len(outcome.completions)
            return True

        outcome = super().run(config, operations, memory, **options | {"part": forgets and part})
        spoil(outcome)
        memory[np.flatnonzero(memory[: 1 << 18] != 0)[-1]] ^= 0xFF
        return outcome


def sim(monkeypatch: pytest.MonkeyPatch, engine: Engine, *arguments: object) -> Result:
    monkeypatch.setattr(command, "load", lambda name: engine)
    return CliRunner().invoke(app.app, ["sim", *map(str, arguments)])


def in_pieces(monkeypatch: pytest.MonkeyPatch, octets: int) -> None:
    """Lets a run begin with its first segment, in pieces of this size."""
    monkeypatch.setattr(plan, "_AHEAD", 0)
    monkeypatch.setattr(compiled, "OCTETS_OF_PIECE", octets)
    monkeypatch.setattr(compiled, "CYCLES", 997)


@pytest.mark.parametrize("engine", [CompiledEngine, Spoiling])
def test_pieces_of_any_size_have_the_same_results(
    engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # With --out nothing is dropped during so short a run.
    whole = sim(monkeypatch, engine(), SHIPPED, "--json", "--out", tmp_path)
    spoilt = engine is Spoiling
    assert whole.exit_code == spoilt, whole.output
    report = json.loads(whole.stdout)
    assert {each["what"] for each in report["differences"]} == (
        {"memory", "cookie of a completion"} if spoilt else set()
    )
    assert all(each["cycle"] for each in report["differences"])
    for octets in (1, 10_000, 1 << 20):
        in_pieces(monkeypatch, octets)
        assert sim(monkeypatch, engine(), SHIPPED, "--json").stdout == whole.stdout


def listed(path: Path) -> tuple[list[tuple[Any, ...]], list[int], list[dict[str, Any]]]:
    """Returns the rows of an explorer as texts, their numbers of explanations, and these."""
    data, pieces = unpacked((path / "explorer.html").read_text())
    rows, numbers = [], list[int]()
    for columns in pieces["rows"]:
        for *row, kind, tag, offset, length, verdict, target, at, number in zip(
            *columns, strict=True
        ):
            where = (*data["targets"][target], at) if target >= 0 else None
            verdict, kind = data["verdicts"][verdict], data["kinds"][kind]
            rows.append((*row, kind, tag, offset, length, verdict, where))
            numbers.append(number)
    return rows, numbers, [each for piece in pieces["more"] for each in piece["segments"]]


def test_a_long_run_lists_all_and_explains_its_beginning_and_what_was_refused_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_pieces(monkeypatch, 1000)
    whole = sim(monkeypatch, CompiledEngine(), SHIPPED, "--out", tmp_path / "whole")
    assert "of 236)" not in whole.stdout
    monkeypatch.setattr(record, "MOST", 50)
    monkeypatch.setattr(record, "_BEHIND", 100)
    monkeypatch.setattr(explorer, "_ROWS", 32)
    monkeypatch.setattr(outline, "_PART", 7)
    beginning = sim(monkeypatch, CompiledEngine(), SHIPPED, "--out", tmp_path / "beginning")
    assert beginning.exit_code == 0
    # All of the nine refused segments come later.
    text = "the first segments and those refused later are explained, 59 of 236"
    assert f"({text})" in " ".join(beginning.stdout.split())
    for name in ("report.json", "memory/index.json", "receives/index.json"):
        texts = [(tmp_path / each / name).read_text() for each in ("whole", "beginning")]
        assert texts[0] == texts[1]
    every, numbers, explanations = listed(tmp_path / "whole")
    rows, some, found = listed(tmp_path / "beginning")
    assert numbers == [*range(236)] and len(rows) == 236
    for row, other, number in zip(rows, every, some, strict=True):
        # Buffers of untagged messages are used again, so only explained rows name theirs.
        buffer = number < 0 and other[4].startswith("QN")
        assert row[:-1] == other[:-1] and row[-1] == (None if buffer else other[-1])
    assert [each for each in some if each >= 0] == [*range(59)] and some[:50] == [*range(50)]
    verdicts = [row[-2] for row, number in zip(rows, some, strict=True) if number >= 50]
    assert all(re.match("refused|failed", verdict) for verdict in verdicts)
    assert found[:50] == explanations[:50] and all("stages" in each for each in found[:50])


def test_the_beginning_of_a_long_run_is_bounded_in_octets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_pieces(monkeypatch, 1000)
    monkeypatch.setattr(record, "OCTETS", most := 5000)
    monkeypatch.setattr(record, "_BEHIND", 50)
    assert sim(monkeypatch, CompiledEngine(), SHIPPED, "--out", tmp_path).exit_code == 0
    rows, numbers, found = listed(tmp_path)
    octets = [row[6] for row, number in zip(rows, numbers, strict=True) if number >= 0]
    assert len(octets) == len(found) < len(rows) == 236
    # Each segment has a header of 14 or 18 octets. The nine that were refused came later.
    assert most - 1500 < sum(octets[:-9]) + 18 * (len(octets) - 9) and sum(octets[:-9]) < most


class Watching(CompiledEngine):
    """Notes the highest address that is written, and which octets the comparisons change.

    ``spoils``: inverts an octet of a message before it is compared for the first time.
    """

    def __init__(self, *, spoils: bool = False) -> None:
        super().__init__()
        self.highest = self.inverted = self.others = 0
        self.spoils = spoils

    def run(self, config: Any, operations: Any, memory: Any, **options: Any) -> Outcome:
        forgets = options["part"]

        def part(outcome: Outcome) -> bool:
            received = [each for each in outcome.completions if not each.tagged and each.length]
            if self.spoils and received:
                memory[int(outcome.writes["address"][-1])] ^= 0xFF
                self.spoils = False
            self.highest = max([self.highest, *outcome.writes["address"].tolist()])
            before = memory.copy()
            done = forgets is not None and forgets(outcome)
            changed = memory != before
            self.inverted += int(np.count_nonzero(memory[changed] == ~before[changed]))
            self.others += int(np.count_nonzero(memory[changed] != ~before[changed]))
            return bool(done)

        outcome = super().run(config, operations, memory, **options | {"part": part})
        self.highest = max([self.highest, *outcome.writes["address"].tolist()])
        return outcome


def test_buffers_of_compared_messages_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces(monkeypatch, 1)
    talk, message = Conversation(), bytes(range(1, 201)) * 5
    for _ in range(300):
        talk.untagged("10.7.0.2", SEND, message)
    (replay,), _ = plan.replays(talk.traffic(), [], RnicConfig())
    engine = Watching()
    run = playing.play(replay, engine)
    assert not run.differences and run.deliveries(0) == 300
    assert engine.highest < 50 * len(message) + replay.plan.ring.octets.stop
    # An octet of a compared message that is not written again differs.
    assert engine.inverted > 250 * len(message) and not engine.others


def test_a_write_after_the_last_buffer_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(CompiledEngine):
        def run(self, config: Any, operations: Any, memory: Any, **options: Any) -> Outcome:
            outcome = super().run(config, operations, memory, **options)
            memory[-1] ^= 1
            return outcome

    in_pieces(monkeypatch, 1)
    talk = Conversation()
    talk.untagged("10.7.0.2", SEND, b"a message")
    talk.untagged("10.7.0.2", SEND, b"another")
    (replay,), _ = plan.replays(talk.traffic(), [], RnicConfig())
    (difference,) = playing.play(replay, Late()).differences
    assert replay.plan.space is not None and replay.plan.space.size < len(replay.plan.memory)
    assert difference.what == "guard octets"


class Keeping(CompiledEngine):
    """Drops nothing, so that no buffer is used again. After the first part of the run, an octet at
    the address ``stray`` of memory is inverted.
    """

    def __init__(self, stray: int | None) -> None:
        super().__init__()
        self.stray = stray

    def run(self, config: Any, operations: Any, memory: Any, **options: Any) -> Outcome:
        def part(outcome: Outcome) -> bool:
            if self.stray is not None:
                assert not memory[self.stray - 1 : self.stray + 2].any()
                memory[self.stray] ^= 0xFF
                self.stray = None
            return False

        return super().run(config, operations, memory, **options | {"part": part})


def test_guards_are_written_as_far_as_buffers_are_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces(monkeypatch, 1)
    monkeypatch.setattr(plan, "_PAINTED", 10_000)
    talk = Conversation()
    for _ in range(300):
        talk.untagged("10.7.0.2", SEND, bytes(range(250)) * 4)

    def play(stray: int | None) -> tuple[plan.Replay, Run]:
        (replay,), _ = plan.replays(talk.traffic(), [], RnicConfig())
        assert replay.filled < 200_000
        return replay, playing.play(replay, Keeping(stray))

    replay, run = play(None)
    planned, filled = replay.plan, replay.filled
    assert planned.space is not None
    assert 300_000 < planned.space.size <= filled < len(run.memory)
    apart = np.ones(len(run.memory), bool)
    apart[planned.ring.octets.start : planned.ring.octets.stop] = False
    for start, end, *_ in planned.pieces():
        apart[start:end] = False
    guards = guard_octets(len(run.memory), filled)
    for image in (planned.memory, run.memory):
        assert np.array_equal(image[apart], guards[apart])
    assert not run.differences
    # A write to a guard is seen, also if it comes before the guard was written.
    stray = int(np.flatnonzero(apart & (np.arange(len(apart)) > 250_000))[0])
    (difference,) = play(stray)[1].differences
    assert difference.what == "guard octets" and f"{stray:#x}" in difference.where


@pytest.mark.parametrize(
    "frame", [(), ("--waves", "walker", "--frame", "60")], ids=["all", "frame"]
)
def test_a_region_is_in_memory_twice_with_the_cycles_of_its_beats(
    frame: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_pieces(monkeypatch, 1 << 16)
    monkeypatch.setattr(differences, "_PART", 1 << 16)
    monkeypatch.chdir(tmp_path)
    engine, path, peaks = CompiledEngine(), tmp_path / "talk.pcap", []
    for step in (10_000, 80_000):
        write_pcap(talk(101, step), path)
        tracemalloc.start()
        assert sim(monkeypatch, engine, path, *frame).exit_code == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2.6 * (100 * 70_000)


@pytest.fixture
def by_sctp(tmp_path: Path) -> Path:
    """A capture of a hundred messages in sessions over SCTP."""
    peers = Peers(a="10.9.0.1", b="10.9.0.2")
    peers.set_up()
    for number in range(12):
        peers.open(3)
        for length in (9, 700, 0):
            one = peers.write("10.9.0.1", 3, 0x100, 0, bytes([number + 1]) * length)
            peers.send("10.9.0.1", one, peers.message("10.9.0.1", 3, bytes(length)))
        peers.close(3)
    path = tmp_path / "sctp.pcap"
    frames = [Frame(n, n * 1e-3, 1, each.octets) for n, each in enumerate(peers.frames, 1)]
    write_pcap(tuple(frames), path)
    return path


def test_sctp_is_played_in_pieces_too(
    by_sctp: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = by_sctp
    whole = sim(monkeypatch, CompiledEngine(), path, "--json", "--out", tmp_path)
    assert whole.exit_code == 0, whole.output
    assert sum(each["deliveries"] for each in json.loads(whole.stdout)["streams"]) == 72
    for octets in (1, 2000):
        in_pieces(monkeypatch, octets)
        engine = Watching()
        assert sim(monkeypatch, engine, path, "--json").stdout == whole.stdout
        assert engine.inverted and not engine.others
    monkeypatch.setattr(record, "MOST", 9)
    monkeypatch.setattr(record, "_BEHIND", 9)
    beginning = tmp_path / "beginning"
    result = sim(monkeypatch, CompiledEngine(), path, "--json", "--out", beginning)
    assert result.stdout == whole.stdout and receives(beginning) == receives(tmp_path)
    (rows, some, found), (every, numbers, explanations) = map(listed, (beginning, tmp_path))
    assert [row[:-1] for row in rows] == [row[:-1] for row in every]
    assert [each for each in some if each >= 0] == [*range(9)] and numbers == [*range(len(every))]
    assert found == explanations[:9] and all("stages" in each for each in found)


def test_the_report_has_all_messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert sim(monkeypatch, CompiledEngine(), SHIPPED, "--out", whole).exit_code == 0
    in_pieces(monkeypatch, 1)
    monkeypatch.setattr(record, "MOST", 5)
    monkeypatch.setattr(record, "_BEHIND", 5)
    engine = Watching()
    assert sim(monkeypatch, engine, SHIPPED, "--out", pieces).exit_code == 0
    assert engine.inverted and not engine.others
    assert receives(whole) == receives(pieces) and len(receives(whole)) > 10


def receives(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "receives").iterdir()}


@pytest.mark.parametrize(
    "words",
    [
        ("explain", "100"),
        *long((("sim", "--waves", "walker", "--frame", "100"),), (("sim", "--send"),)),
    ],
    ids=["explain", "frame", "send"],
)
def test_memory_does_not_grow_with_the_capture(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_pieces(monkeypatch, 1 << 16)
    monkeypatch.setattr(spool, "_KEPT", 1 << 16)
    monkeypatch.setattr(spool, "_SEARCHED", 1 << 16)
    monkeypatch.setattr(sending, "_SEGMENTS", 50)
    monkeypatch.setattr(one_frame, "_BEHIND", 50)
    monkeypatch.setattr(one_frame, "_OPERATIONS", 50)
    monkeypatch.chdir(tmp_path)
    engine, peaks = CompiledEngine(), []
    monkeypatch.setattr(command, "load", lambda name: engine)
    for count in (200, 700):
        write_pcap(talk(count), path := tmp_path / "talk.pcap")
        name, *options = words
        tracemalloc.start()
        result = CliRunner().invoke(app.app, [name, str(path), *options])
        assert result.exit_code == 0, result.output
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 500 < 300  # a segment has 1400 octets


class Frames(FrameCycles):
    """Finds the cycles of all frames, with a FrameCycles for each of them."""

    def __init__(self, replay: plan.Replay, frames: Iterable[int]) -> None:
        self.frames = {frame: FrameCycles(replay.plan, frame) for frame in frames}

    def all(self) -> dict[int, list[Segment]]:
        return {frame: each.segments for frame, each in self.frames.items()}

    def entry(self, want: Expected, cycle: int | None) -> None:
        for each in self.frames.values():
            each.entry(want, cycle)

    def take(self, outcome: Outcome, *, ends: bool = False) -> None:
        for each in self.frames.values():
            each.take(outcome, ends=ends)


@pytest.mark.parametrize("over", ["mpa", "sctp"])
def test_the_cycles_of_a_frame_are_those_of_a_run_that_keeps_everything(
    over: str, by_sctp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_pieces(monkeypatch, 1000)
    path = SHIPPED if over == "mpa" else by_sctp
    found = read_input(Asked(path, None, [], []), RnicConfig())

    def replay() -> plan.Replay:
        (one,), _ = plan.replays(found.traffic, found.regions, RnicConfig(), found.ends)
        return one

    def play(behind: int, *, keep: bool) -> tuple[Frames, dict[int, list[Segment]]]:
        monkeypatch.setattr(one_frame, "_BEHIND", behind)
        cycles = Frames(one := replay(), frames)
        run = playing.play(one, CompiledEngine(), keep=keep, cycles=cycles)
        whole: dict[int, list[Segment]] = {}
        for segment in segments(run) if keep else ():
            whole.setdefault(segment.arrival.frame, []).append(segment)
        return cycles, {frame: whole[frame] for frame in sorted(whole)[::5]}

    # With ``keep`` so short a run keeps everything, and uses no buffer again.
    frames: list[int] = []
    frames += play(1 << 20, keep=True)[1]
    for one, other in (
        play(60, keep=True),
        (play(60, keep=False)[0], play(1 << 20, keep=False)[0].all()),
    ):
        for frame, known in other.items():
            shown = one.frames[frame].segments
            for what in ("first", "last", "placed", "octets", "delivered"):
                got, expected = ([getattr(each, what) for each in some] for some in (shown, known))
                assert got == expected, (frame, what)
        ends = {(each.first, each.last) for each in one.frames.values()}
        assert len(ends) == 1 and all(first <= frames[0] for first, _ in ends)


def test_a_buffer_that_differs_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces(monkeypatch, 1)
    result = sim(monkeypatch, Watching(spoils=True), SHIPPED, "--json")
    assert result.exit_code == 1
    (difference,) = json.loads(result.stdout)["differences"]
    assert difference["what"] == "received message"


class Interrupted(FakeEngine):
    """Gets Ctrl-C before the packet of this number; ``twice``: also before the next operation."""

    def __init__(self, number: int, *, twice: bool = False) -> None:
        super().__init__()
        self.number, self.left = number, 1 + twice

    def run(self, config: Any, operations: Iterable[Operation], *rest: Any, **how: Any) -> Outcome:
        return super().run(config, self._until(operations), *rest, **how)

    def _until(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        packets = 0
        for each in operations:
            packets += isinstance(each, Packet)
            if packets >= self.number and self.left:
                self.left -= 1
                signal.raise_signal(signal.SIGINT)
            yield each


@pytest.fixture(autouse=True)
def _on_a_terminal() -> Iterator[None]:
    """Lets Ctrl-C act as on a terminal, even if the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_command_in_the_background_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell without job control starts it with the signal ignored (POSIX, section 2.11)."""
    in_pieces(monkeypatch, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    result = sim(monkeypatch, Interrupted(100), SHIPPED)
    assert result.exit_code == 0 and "236 segments" in result.stdout


def test_an_interrupted_run_reports_what_was_played(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_pieces(monkeypatch, 1)
    before = signal.getsignal(signal.SIGINT)
    result = sim(monkeypatch, Interrupted(100), SHIPPED, "--out", tmp_path)
    assert result.exit_code == 130 and result.stderr == "rnic: interrupted\n"
    assert "agree on what was played" in result.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    (left,) = report["left_out"]
    assert left["what"] == "segment"
    assert left["reason"].startswith("not played, because of an interrupt after frame ")
    assert report["segments"] >= 100 and report["segments"] + left["count"] == 236
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pieces(monkeypatch, 1)
    result = sim(monkeypatch, Interrupted(100, twice=True), SHIPPED)
    assert result.exit_code == 130 and not result.stdout
    assert result.stderr == "rnic: interrupted\n"


def test_an_interrupt_after_the_last_segment_leaves_a_whole_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = sim(monkeypatch, Interrupted(100), SHIPPED)  # everything was planned before
    assert result.exit_code == 130 and "236 segments" in result.stdout


class InterruptedSender(CompiledEngine):
    """Gets Ctrl-C after the first operations of a run."""

    def run(self, config: Any, operations: Iterable[Operation], *rest: Any, **how: Any) -> Outcome:
        return super().run(config, self._until(operations), *rest, **how)

    def _until(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        for number, each in enumerate(operations):
            yield each
            if number == 9:
                signal.raise_signal(signal.SIGINT)


def test_an_interrupted_sender_reports_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_SEGMENTS", 100)
    result = sim(monkeypatch, InterruptedSender(), SHIPPED, "--send")
    assert result.exit_code == 130 and result.stderr == "rnic: interrupted\n"
    (counts,) = re.findall(r"senders on (\d+) segments, RTL on (\d+) of them", result.stdout)
    (left,) = re.findall(r"(\d+) segments \(not sent, because of an interrupt\)", result.stdout)
    assert counts[0] == counts[1] and int(counts[0]) + int(left) == 236
