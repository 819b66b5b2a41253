"""``rnic sim``: plays a capture through the RTL and through the golden model."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from ..hdl.spec.config import RnicConfig
from ..sim.capture.capture import CaptureError, Watch
from ..sim.capture.pcap import LeftOut
from ..sim.capture.pcap import counted as _count
from ..sim.capture.sctp_traffic import SctpStream
from ..sim.capture.streams import Stream
from ..sim.capture.traffic import Traffic
from ..sim.engines.choice import load
from ..sim.engines.engine import Engine, Operation, Outcome
from ..sim.engines.waves import Waves
from ..sim.replay.differences import Difference, number_text
from ..sim.replay.plan import Replay, replays
from ..sim.replay.regions import RIGHTS, Region
from ..sim.replay.send_plan import SendPlan, send_plans
from ..sim.replay.sending import LONGEST, Sent, send_in_parts
from ..sim.reports import explorer, report, viewers
from ..sim.reports.explanation import Explainer
from ..sim.reports.one_frame import FrameCycles
from ..sim.reports.record import MOST, OCTETS
from ..sim.reports.report import Result, Run, left_out_text
from .inputs import Asked, Assume, Input, Regions, SctpPort, read_input
from .outcome import (
    DIFFERS,
    BadInput,
    check_directory,
    exits,
    interruptible,
    make_directory,
    writing,
)
from .playing import Live, play
from .results import print_differences, print_notes
from .terminal import bar, colored, console, print_table, say
from .waves import Cycles, Parts, cycles_of, waves_of

#: Cycles that a waveform shows before and after those of a frame.
_LEAD = 20


Out = Annotated[
    Path | None,
    typer.Option(
        help="Directory for report.json, memory/, receives/, and explorer.html, which lists all"
        f" segments, and explains the first ones, up to {MOST} and {OCTETS >> 20} MiB, and all that"
        " were refused.",
        show_default=False,
    ),
]


class EngineName(StrEnum):
    """The engines that run the Verilog."""

    COMPILED = "compiled"
    COCOTB = "cocotb"


@exits()
def sim(
    capture: Annotated[
        Path | None,
        typer.Argument(
            help="pcap or pcapng file, possibly compressed, or a pipe, which is played while it is"
            " being written; - is standard input. Default: a generated workload.",
            show_default=False,
        ),
    ] = None,
    width: Annotated[int, typer.Option(help="Datapath width in bits: 64, 128, 256 or 512.")] = 64,
    regions: Regions = None,
    out: Out = None,
    engine: Annotated[
        EngineName, typer.Option(help="Engine that runs the Verilog.")
    ] = EngineName.COMPILED,
    waves: Parts = None,
    cycles: Cycles = None,
    frame: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --waves: only the cycles of this frame's segments.",
            show_default=False,
        ),
    ] = None,
    send: Annotated[
        bool,
        typer.Option(
            "--send",
            help="Instead, send the capture's messages by the RTL and the golden model, and compare"
            " the octets with those of the capture.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json instead of tables.")
    ] = False,
    assume: Assume = None,
    sctp_port: SctpPort = None,
) -> None:
    """Play a capture through the RTL and the golden model, and compare the results.

    The results are memory, completions, errors and packets.

    Exit code 0: they agree. 1: they differ. 2: bad input. 3: a tool is missing.
    130: interrupted; the results cover the segments that were played.
    """
    asked = Asked(capture, regions, assume or [], sctp_port or [])
    shown = Shown.of(waves, cycles, frame, engine)
    if send:
        if regions or out or frame or as_json or engine is not EngineName.COMPILED:
            raise BadInput("--send takes no --regions, --out, --frame, --json, --engine")
        _send(asked, width, shown)
        return
    config = _config(width)
    check_directory(out)
    shown.check(config)
    runner = load(engine.value)
    watch = Watch(live := Live(config, runner, asked))
    found = _read(asked, config, watch)
    result, waveforms = _simulate(asked, found, config, out, runner, shown, watch)
    with writing(out):
        written = [] if out is None else _write(result, found, out)
    if as_json:
        typer.echo(json.dumps(report.as_json(result), indent=2))
    else:
        written += [f"waveform: {escape(str(path))}" for path in waveforms]
        if not result.agrees:
            written.append(f"waveform command: {escape(_with_waves(asked, width, engine))}")
        _print(console(), result, written)
    if not live.agrees:
        say("RTL and golden model differed while the capture was being written, as shown above")
    if result.interrupted:
        raise KeyboardInterrupt
    if not (result.agrees and live.agrees):
        raise typer.Exit(DIFFERS)


def _read(asked: Asked, config: RnicConfig, watch: Watch) -> Input:
    """Returns the traffic to play; the first Ctrl-C ends the reading."""
    with interruptible(watch.stop) as begin:
        begin()
        try:
            return read_input(asked, config, watch=watch)
        except CaptureError as error:
            if not watch.stopped:
                raise
            say(f"rnic: {error}")
            raise KeyboardInterrupt from None


def _with_waves(asked: Asked, width: int, engine: EngineName) -> str:
    """Returns the same command with a waveform."""
    words = [
        *("rnic", "sim"),
        *([str(asked.capture)] if asked.capture else []),
        *("--width", str(width)),
        *(["--regions", str(asked.regions)] if asked.regions else []),
        *(part for each in asked.assume for part in ("--assume", each)),
        *(part for each in asked.sctp_ports for part in ("--sctp-port", str(each))),
        *("--engine", engine.value, "--waves", "all"),
    ]
    return shlex.join(words)


def _simulate(
    asked: Asked,
    found: Input,
    config: RnicConfig,
    out: Path | None,
    engine: Engine,
    shown: Shown,
    watch: Watch,
) -> tuple[Result, list[Path]]:
    def planned() -> tuple[list[Replay], list[str]]:
        return replays(found.traffic, found.regions, config, found.ends, found.queues)

    with interruptible(watch.stop) as begin:
        begin()
        planning, changes = planned()
    make_directory(out)
    result = Result(
        asked.source,
        engine.name,
        config.width,
        found.derived,
        notes=[*found.notes, *changes],
        left_out=[*found.left_out],
        interrupted=watch.stopped,
    )
    waveforms = []
    keep = out is not None or (shown.parts is not None and shown.frame is None)
    frames: list[tuple[int, int]] = []  # the first and the last one with a segment, of each RNIC
    for number in range(1, len(planning) + 1):
        each = planning[number - 1]
        if watch.over:
            each.stop()
        waves = shown.waves(each.plan.config, _waveform(out or Path(), number, len(planning)))
        cycles = None if shown.frame is None else FrameCycles(each.plan, shown.frame)
        with _progress(each.total, number, len(planning)) as progress:
            # The cycles of a frame are known only after a first run.
            first = waves if cycles is None else None
            run = _played(each, engine, first, keep, progress, cycles)
            window = shown.window(run, cycles)
            frames += [(cycles.first, cycles.last)] if cycles is not None and cycles.last else []
            if cycles is not None and waves is not None and window is not None and not each.stopped:
                waves = replace(waves, cycles=window.cycles)
                del run, cycles, each, planning[number - 1]  # memory has room for one of the runs
                each = planned()[0][number - 1]
                planning.insert(number - 1, each)
                run = _played(each, engine, waves, keep, progress)
        result.runs.append(run)
        if waves is not None and window is not None:
            waveforms.append(waves.path)
            if engine.name == EngineName.COMPILED:  # the times of cocotb's waveforms are others
                waveforms += viewers.write(waves, window.marker)
        if each.stopped:
            frame = each.frame
            if left := sum(each.rest() for each in planning):
                why = f"not played, because of an interrupt after frame {frame}"
                result.left_out.append(LeftOut(left, "segment", why))
            result.interrupted = True
            return result, waveforms
    if shown.frame is not None and not waveforms:
        raise BadInput(
            f"--frame {shown.frame}: no segment that the device got ends in this frame"
            f"{_ends_of(frames)}"
        )
    return result, waveforms


def _ends_of(frames: list[tuple[int, int]]) -> str:
    """Returns the end of a sentence, which names the first and the last frame with a segment."""
    if not frames:
        return ""
    first, last = min(first for first, _ in frames), max(last for _, last in frames)
    return f"; the first and the last one are {first} and {last}"


def _played(
    replay: Replay,
    engine: Engine,
    waves: Waves | None,
    keep: bool,
    progress: Callable[..., None] | None,
    cycles: FrameCycles | None = None,
) -> Run:
    """Plays a capture through one RNIC; the first Ctrl-C ends that after the planned segments."""
    with interruptible(replay.stop) as begin:
        return play(replay, engine, begin, waves=waves, keep=keep, cycles=cycles, progress=progress)


def _write(result: Result, found: Input, out: Path) -> list[str]:
    """Writes the report and the segments with their explanations; returns lines that name both."""
    report.write(result, out)
    path = out / "explorer.html"
    explainer = Explainer(found.capture, found.traffic, [run.plan for run in result.runs])
    explainer.read(found.frames())
    listed = len(explainer.judged)
    with bar("explaining", listed) as progress:
        explorer.write(result, explainer, path, progress)
    some = (
        f" ({explorer.explained_text(listed, result.segments)})" if listed < result.segments else ""
    )
    return [
        f"report: {escape(str(out / 'report.json'))}",
        f"segments: {escape(str(path))}{some}",
    ]


class Shown(NamedTuple):
    """The options for a waveform: parts, cycles, or the frame whose cycles are shown."""

    parts: str | None
    cycles: range | None
    frame: int | None

    @classmethod
    def of(
        cls, parts: str | None, cycles: str | None, frame: int | None, engine: EngineName
    ) -> Shown:
        """Returns the options; raises for those that do not go together."""
        shown = cls(parts, cycles_of(cycles, parts), frame)
        if frame is not None and (parts is None or cycles is not None):
            raise BadInput("--frame needs --waves, and takes no --cycles")
        if engine is EngineName.COCOTB and (cycles or frame or parts not in (None, "all")):
            raise BadInput("--engine cocotb writes waves of all parts and cycles: use --waves all")
        return shown

    def check(self, config: RnicConfig) -> None:
        """Raises for parts that the device does not have."""
        self.waves(config, Path())

    def waves(self, config: RnicConfig, path: Path) -> Waves | None:
        return waves_of(self.parts, path, config, self.cycles)

    def window(self, run: Run, cycles: FrameCycles | None) -> _Window | None:
        """Returns the cycles that are shown of a run, or None if it does not have the frame."""
        if cycles is None:
            if self.cycles is not None:
                return _Window(self.cycles, self.cycles.start)
            taken = run.outcome.taken["first"]
            return _Window(None, int(taken[0]) if len(taken) else 0)
        found = cycles.segments
        if not found:
            return None
        first, last = min(each.first for each in found), max(each.end for each in found)
        return _Window(range(max(first - _LEAD, 0), last + _LEAD + 1), first)


class _Window(NamedTuple):
    """The cycles that a waveform shows, None for all, and the one at which viewers open it."""

    cycles: range | None
    marker: int


def _send(asked: Asked, width: int, shown: Shown) -> None:
    """Sends a capture's messages by the golden model and the RTL, and prints the comparison."""
    config = _config(width, sends=True)
    found = read_input(asked, config)
    traffic = found.traffic
    if traffic.sctp is not None and (traffic.sctp.arrivals or traffic.sctp.controls):
        mpa = bool(traffic.arrivals)
        config = replace(config, sctp=True, mpa=mpa, responder=mpa)
    sent = _send_parts(traffic, config, shown)
    results, terminal = sent.results, console()
    headings = (
        *("from", "to", "LLP", "messages", "segments", "MULPDU"),
        *("other PAD or CRC", "differences"),
    )
    rows = []
    for each in results:
        counts = each.messages, each.segments, each.mulpdu, each.chosen, each.differing
        ends = str(each.stream.source), str(each.stream.destination)
        rows.append([*ends, _way(each.stream), *map(str, counts)])
    print_table(terminal, f"{asked.source}: sent again", headings, rows)
    apart = (
        (sum(each.left_out for each in results), "the message is not whole"),
        (sum(each.long for each in results), f"the message has more than {LONGEST} octets"),
        (
            sum(each.empty for each in results),
            "golden model and RTL send no empty segment beside others of its message",
        ),
        *((count, why) for why, count in sent.left_out.items()),
        (sent.rest, "not sent, because of an interrupt"),
    )
    left_out = [
        *found.left_out,
        *(LeftOut(count, "segment", why) for count, why in apart if count),
    ]
    print_notes(terminal, found.notes, left_out)
    differences = [difference for each in results for difference in each.told()]
    differences += sent.differences
    for path in sent.waveforms:
        terminal.print(f"waveform: {escape(str(path))}", soft_wrap=True)
    print_differences(terminal, differences)
    segments = sum(each.segments for each in results)
    controls = sent.controls
    beside = f" and {_count(controls, 'control message')}" if controls else ""
    terminal.print(
        f"{colored('differ' if differences else 'agree', not differences)}: golden model and"
        f" senders on {_count(segments, 'segment')}{beside}, RTL on {sent.segments} of them"
        f" and on {sent.repeats} once more, {sent.cycles} cycles at {config.width} bits"
        f"{escape(left_out_text(left_out))}",
        soft_wrap=True,
    )
    if sent.interrupted:
        raise KeyboardInterrupt
    if differences:
        raise typer.Exit(DIFFERS)


@dataclass
class _SentAgain:
    """The results of senders, of the golden model and of the RTL.

    The counts are those of the RTL. ``rest`` counts the segments that an interrupt left out.
    """

    results: list[Sent] = field(default_factory=list)
    cycles: int = 0
    segments: int = 0
    repeats: int = 0
    controls: int = 0
    rest: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    waveforms: list[Path] = field(default_factory=list)
    interrupted: bool = False

    def stop(self) -> None:
        """Ends the run after the part of the capture that is being sent."""
        self.interrupted = True

    def operations(self, plan: SendPlan, begin: Callable[[], None]) -> Iterator[Operation]:
        """Yields the operations of a plan. Ctrl-C calls :meth:`stop` from the first one on."""
        if not self.interrupted:
            begin()
        yield from plan.operations

    def show(
        self,
        progress: Callable[[int, int], None],
        plan: SendPlan,
        total: int,
        done: int,
        known: int,
    ) -> None:
        """Shows how many segments and control messages the RTL has sent while a plan is played."""
        part = (plan.segments + plan.controls) * done // known
        progress(self.segments + self.controls + part, total)

    def take(self, plan: SendPlan, outcome: Outcome) -> None:
        """Takes the outcome of one device."""
        self.cycles += outcome.cycles
        self.segments += plan.segments
        self.repeats += plan.repeats
        self.controls += plan.controls
        self.left_out += plan.left_out
        self.differences += plan.compare(outcome)


def _send_parts(traffic: Traffic, config: RnicConfig, shown: Shown) -> _SentAgain:
    """Sends a capture's messages part by part. Each part has devices of its own, so that memory
    holds one part, whatever the length of the capture.
    """
    sent, engine = _SentAgain(), load(EngineName.COMPILED.value)
    sctp = () if traffic.sctp is None else (traffic.sctp.arrivals, traffic.sctp.controls)
    total = sum(map(len, (traffic.arrivals, *sctp)))
    with interruptible(sent.stop) as begin, bar("sending", total) as progress:
        for sent.results in send_in_parts(traffic):
            for plan in send_plans(sent.results, config):
                at = len(sent.waveforms) + 1
                waves = shown.waves(config, _waveform(Path(), at, at))
                show = None if progress is None else partial(sent.show, progress, plan, total)
                operations = sent.operations(plan, begin)
                outcome = engine.run(config, operations, plan.memory, waves=waves, progress=show)
                sent.take(plan, outcome)
                if waves is not None:
                    sent.waveforms.append(waves.path)
            if sent.interrupted:
                sent.rest = total - sum(each.taken for each in sent.results)
                break
    if len(sent.waveforms) > 1:
        sent.waveforms[0] = sent.waveforms[0].rename(_waveform(Path(), 1, 2))
    return sent


def _config(width: int, *, sends: bool = False) -> RnicConfig:
    """Returns the device; if it ``sends``, the one that ``rnic peer`` has, which is built once."""
    try:
        return RnicConfig(width=width, transmit=sends, responder=sends)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _waveform(directory: Path, number: int, count: int) -> Path:
    """Returns the path of the waveform of one run of several, and makes its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory / (f"waves-{number}.fst" if count > 1 else "waves.fst")


def _progress(
    operations: int, number: int, count: int
) -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Shows the progress of one run of several."""
    return bar(f"RNIC {number} of {count}" if count > 1 else "simulating", operations)


def _print(console: Console, result: Result, then: list[str]) -> None:
    """Prints the tables, the verdict, and further lines."""
    _print_streams(console, result)
    if any(run.plan.allotments for run in result.runs):
        _print_regions(console, result)
    else:
        console.print("No region is registered, because no tagged segment has to be placed.")
    if any(run.plan.buffers for run in result.runs):
        _print_queues(console, result)
    print_notes(console, result.notes, result.left_out)
    for run in result.runs:
        print_differences(console, run.differences)
    counts = (
        f"{_of_frames(result)}{_count(result.segments, 'segment')},"
        f" {_count(result.bytes_placed, 'octet')} placed,"
        f" {_count(result.deliveries, 'message')} delivered,"
        f" {_count(result.cycles, 'cycle')} at {result.width} bits"
    )
    console.print(
        f"{colored(result.verdict, result.agrees)}: {escape(report.outcome_text(result))};"
        f" RTL and golden model on {counts}{escape(left_out_text(result.left_out))}",
        soft_wrap=True,
    )
    for line in then:
        console.print(line, soft_wrap=True)


def _of_frames(result: Result) -> str:
    if not result.goldens:
        return ""
    frames, packets = (
        sum(getattr(golden, name) for golden in result.goldens) for name in ("frames", "packets")
    )
    return f"{_count(frames, 'SCTP frame')} ({_count(packets, 'packet')} taken), "


def _print_streams(console: Console, result: Result) -> None:
    headings = [
        *("stream", "from", "to", "LLP", "segments", "placed", "octets placed", "delivered"),
        *("exceptions", "dropped"),
        *(("sessions", "duplicates") if result.goldens else ()),
        "error",
    ]
    rows = []
    for run, stream in result.streams:
        counts = run.plan.golden.counts[stream.number]
        numbers = [
            *(counts.segments, counts.placed, counts.octets, run.deliveries(stream.number)),
            *(counts.exceptions, counts.dropped),
            *((counts.sessions, counts.duplicates) if result.goldens else ()),
        ]
        errors = [
            number_text(event) for event in run.outcome.events if event.stream == stream.number
        ]
        ends = str(stream.source), str(stream.destination)
        rows.append(
            [str(stream.number), *ends, _way(stream), *map(str, numbers), ", ".join(errors)]
        )
    print_table(console, f"{result.source}: DDP Streams", headings, rows)


def _way(stream: Stream) -> str:
    """Returns the layer below DDP and its options."""
    if isinstance(stream, SctpStream):
        return f"SCTP stream {stream.sid}"
    options = ("CRC", stream.crc), ("markers", stream.markers)
    return " ".join(["MPA", *(name for name, used in options if used)])


def _print_regions(console: Console, result: Result) -> None:
    origin = "derived from the capture" if result.derived else "given"
    headings = [
        *("host", "STag", "Tagged Offset", "octets"),
        *(("SCTP session",) if result.goldens else ()),
        *("access", "registered"),
    ]
    rows = []
    for run in result.runs:
        for allotment in run.plan.allotments:
            region = allotment.region
            rights = [word for word, right in RIGHTS.items() if right in region.access]
            rows.append(
                [
                    *(region.endpoint, f"{region.stag:#010x}", f"{region.to:#x}"),
                    str(region.length),
                    *([_session(region)] if result.goldens else []),
                    "remote " + ", ".join(rights) if rights else "none",
                    report.periods_text(region.periods),
                ]
            )
    print_table(console, f"Regions ({origin})", headings, rows)


def _session(region: Region) -> str:
    """Returns the session to which a region belongs."""
    return "" if region.session is None else "stream {}, session {}".format(*region.session)


def _print_queues(console: Console, result: Result) -> None:
    """Prints the untagged queues that had a buffer."""
    rows = []
    for run, stream in result.streams:
        received = [
            (buffer.qn, length)
            for buffer, length in run.received()
            if buffer.stream == stream.number
        ]
        posted = [buffer.qn for buffer in run.plan.buffers if buffer.stream == stream.number]
        for qn in sorted(set(posted)):
            lengths = [length for number, length in received if number == qn]
            counts = qn, posted.count(qn), len(lengths), sum(lengths)
            rows.append([str(stream.number), stream.destination.address, *map(str, counts)])
    headings = "stream", "host", "QN", "buffers", "messages", "octets"
    print_table(console, "Untagged queues", headings, rows)
