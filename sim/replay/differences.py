"""Compares a simulated RNIC with the golden model: memory, completions, events, exception
packets.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec.completion import ChunkStatus, Completion, Kind, phase
from ...hdl.spec.ddp import ErrorNumber, ErrorType
from ...hdl.spec.sctp import Diversion
from ..capture.sctp_traffic import SctpStream
from ..engines.engine import ErrorEvent, ExceptionPacket, Outcome
from .expectation import Buffer, Expected, ExpectedError, Record, Sequence
from .host import Allotment
from .plan import Plan
from .sctp_expectation import CHUNKS

#: How many differences of one kind are listed, and how many octets of each.
_TOLD, _OCTETS = 10, 64
#: How many octets of memory are compared at a time, and how many writes are noted.
_PART, _WRITES = 1 << 22, 1 << 16


@dataclass(frozen=True)
class Difference:
    """A difference, its place, and the cycle in which the RNIC caused it, if that is known.

    ``octets`` are the expected and the actual octets in hexadecimal, from the first that differs.
    """

    what: str
    where: str
    expected: str
    got: str
    cycle: int | None = None
    octets: tuple[str, str] | None = None


def find_differences(plan: Plan, outcome: Outcome, memory: NDArray[np.uint8]) -> list[Difference]:
    """Returns all differences of a run. ``memory`` is host memory after it."""
    return Comparison(plan).finish(outcome, memory)


def find_differences_in_any_order(
    plan: Plan, outcome: Outcome, memory: NDArray[np.uint8]
) -> list[Difference]:
    """Returns the differences that matter in whatever order, and however often, the frames arrived.

    These are memory, errors, entries that have a turn, and chunks that were not taken exactly once.
    """
    in_turn = {
        sequence: entries
        for sequence, entries in plan.golden.sequences().items()
        if sequence != CHUNKS
    }
    entries = _Entries(plan)
    entries.take(outcome, in_turn)
    return _told(
        _memory(plan, outcome, memory, None),
        _stray(outcome),
        entries.differences(),
        _events(plan, outcome),
        _taken(plan, outcome),
    )


class Comparison:
    """Compares a run with the golden model, also piece by piece during the run.

    Parameters
    ----------
    plan
        The plan of the run.
    entry
        This function gets each expected entry of the completion ring that has come, and its cycle,
        if that is known.
    """

    def __init__(
        self, plan: Plan, entry: Callable[[Expected, int | None], None] = lambda *_: None
    ) -> None:
        self._plan = plan
        self._entries, self._exceptions = _Entries(plan, entry), _Exceptions(plan)
        self._written: NDArray | None = None

    def take(self, outcome: Outcome) -> None:
        """Compares the events since the last call. Then the plan and the engine may forget them."""
        self._entries.take(outcome, self._plan.golden.sequences())
        self._exceptions.take(outcome)
        octets = self._plan.config.octets
        if self._written is None:
            self._written = np.zeros(len(self._plan.memory) // octets + 1, np.uint32)
        if outcome.cycles > np.iinfo(self._written.dtype).max:
            self._written = self._written.astype(np.uint64)  # with room for any cycle
        for at in range(0, len(outcome.writes), _WRITES):
            writes = outcome.writes[at : at + _WRITES]
            beats = (writes["address"] - self._plan.base) // octets
            inside = beats < len(self._written)
            self._written[beats[inside]] = writes["cycle"][inside]

    def finish(self, outcome: Outcome, memory: NDArray[np.uint8]) -> list[Difference]:
        """Returns all differences, at the end of the run. ``memory`` is host memory then."""
        self._entries.take(outcome, self._plan.golden.sequences())
        self._exceptions.take(outcome)
        return _told(
            _memory(self._plan, outcome, memory, self._written),
            _stray(outcome),
            self._entries.differences(),
            _events(self._plan, outcome),
            self._exceptions.differences(),
            _counters(self._plan, outcome),
        )


def _told(*kinds: Iterator[Difference]) -> list[Difference]:
    """Returns the differences to be listed of each kind, and how many more there are."""
    differences: list[Difference] = []
    for kind in kinds:
        found = list(kind)
        differences += found[:_TOLD]
        if len(found) > _TOLD:
            differences.append(
                Difference(
                    found[_TOLD].what,
                    "elsewhere",
                    f"{len(found) - _TOLD} further differences of this kind",
                    "not shown",
                )
            )
    return differences


# -- memory --


def _memory(
    plan: Plan,
    outcome: Outcome,
    memory: NDArray[np.uint8],
    written: NDArray | None,
) -> Iterator[Difference]:
    """Yields runs of octets that differ.

    ``written`` has the cycle of the last write to each beat of memory before those of the outcome.
    """
    expected, ring = plan.image(), plan.ring.octets
    parts = []
    for start in range(0, len(expected), _PART):
        image = expected[start : start + _PART]
        unlike = memory[start : start + len(image)] != image
        begin, end = (max(at - plan.base - start, 0) for at in (ring.start, ring.stop))
        unlike[begin:end] = False
        parts.append(start + np.flatnonzero(unlike))
    # Nothing may be written after the last buffer, however much memory there is.
    for start in range(len(expected), len(memory), _PART):
        part = slice(start, start + _PART)
        parts.append(start + np.flatnonzero(memory[part] != plan.memory[part]))
    wrong = np.concatenate(parts)
    if not len(wrong):
        return
    starts = np.flatnonzero(np.diff(wrong, prepend=-2) != 1)
    ends = np.append(starts[1:], len(wrong))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        address, count = int(wrong[start]), end - start
        found = plan.holder_at(address)
        shown = slice(address, address + min(count, _OCTETS))
        image = (expected if address < len(expected) else plan.memory)[shown]
        yield Difference(
            _KINDS[type(found[0])] if found else "guard octets",
            _where(plan, address) + (f", the first of {count} octets" if count > 1 else ""),
            f"{image[0]:#04x}{_writer(plan, address)}",
            f"{memory[address]:#04x}",
            _cycle(plan, outcome, address, written),
            _octets(image, memory[shown]),
        )


def _octets(expected: NDArray[np.uint8] | bytes, got: NDArray[np.uint8] | bytes) -> tuple[str, str]:
    """Returns as many octets as are shown."""
    return bytes(expected[:_OCTETS]).hex(), bytes(got[:_OCTETS]).hex()


#: The name of memory, by its owner.
_KINDS = {Allotment: "memory", Buffer: "received message"}


def _where(plan: Plan, address: int) -> str:
    if (found := plan.holder_at(address)) is not None:
        holder, offset = found
        if isinstance(holder, Buffer):
            return f"octet {offset} of {holder}"
        region = holder.region
        return f"{region.endpoint} STag {region.stag:#010x} TO {region.to + offset:#x}"
    pieces = [
        (end, str(holder.region if isinstance(holder, Allotment) else holder))
        for _, end, holder, _ in plan.pieces()
    ]
    pieces.append((plan.ring.octets.stop - plan.base, "the completion ring"))
    end, name = max((piece for piece in pieces if piece[0] <= address), default=(0, ""))
    if not name:
        return f"host address {plan.base + address:#x}, before every region and buffer"
    return f"host address {plan.base + address:#x}, {address - end} octets past the end of {name}"


def _writer(plan: Plan, address: int) -> str:
    """Returns the segment that should have written an octet last."""
    if plan.holder_at(address) is None:
        return ""
    if (found := plan.writer(address)) is None:
        return " (as before)"
    stream, frame, order = found
    return f" (stream {stream}, frame {frame}, segment {order})"


def _cycle(plan: Plan, outcome: Outcome, address: int, written: NDArray | None) -> int | None:
    beat = (plan.base + address) // plan.config.octets
    hits = np.flatnonzero(outcome.writes["address"] // plan.config.octets == beat)
    if len(hits):
        return int(outcome.writes["cycle"][hits[-1]])
    cycle = 0 if written is None else int(written[address // plan.config.octets])
    return cycle or None


def _stray(outcome: Outcome) -> Iterator[Difference]:
    for stray in outcome.stray:
        cycle, address = int(stray["cycle"]), int(stray["address"])
        yield Difference(
            "bus write", f"bus address {address:#x}, outside host memory", "none", "a write", cycle
        )


# -- completions --


class _Got(NamedTuple):
    """A completion, how many preceded it in its ring, and its cycle, or None."""

    completion: Completion
    place: int
    cycle: int | None


@dataclass
class _Group:
    """The entries of a group that have no counterpart yet, and the differences of the others."""

    wanted: deque[Expected] = field(default_factory=deque)
    got: deque[_Got] = field(default_factory=deque)
    compared: int = 0
    unlike: list[Difference] = field(default_factory=list)


class _Entries:
    """Compares the entries of the completion ring with those that are expected."""

    def __init__(
        self, plan: Plan, entry: Callable[[Expected, int | None], None] = lambda *_: None
    ) -> None:
        self._plan, self._entry = plan, entry
        self._counts: Counter[int] = Counter()
        self._groups: dict[Sequence, _Group] = {}

    def take(self, outcome: Outcome, expected: dict[Sequence, list[Expected]]) -> None:
        """Takes further entries; those of records that are not expected are passed over."""
        for sequence, entries in expected.items():
            self._groups.setdefault(sequence, _Group()).wanted.extend(entries)
        expected = {sequence: [] for sequence in self._groups} | expected
        places = [*self._plan.ring.numbers(outcome.completions, self._counts)]
        for sequence, numbers in _numbers(self._plan, outcome, expected).items():
            self._groups.setdefault(sequence, _Group()).got.extend(
                _Got(outcome.completions[at], places[at], _delivered_in(outcome, at))
                for at in numbers
            )
        for sequence, group in self._groups.items():
            while group.wanted and group.got:
                group.compared += 1
                group.unlike += self._compared(sequence[0], group)

    def _compared(self, what: str, group: _Group) -> Iterator[Difference]:
        want, got = group.wanted.popleft(), group.got.popleft()
        self._entry(want, got.cycle)
        # The phase is that of the entry's place in the ring.
        completion = want.completion._replace(phase=phase(got.place, self._plan.ring.size))
        if isinstance(want, Record) and want.state is not None:
            if got.completion.tag == want.state:
                completion = completion._replace(tag=want.state)
        where = f"{what} {group.compared}, {want.text}"
        for name, one, other in _unlike(completion, got.completion):
            yield Difference(f"{name} of a {what}", where, one, other, got.cycle)

    def differences(self) -> Iterator[Difference]:
        """Yields the differences of all entries that were taken."""
        for (what, _), group in self._groups.items():
            yield from group.unlike
            for count, want in enumerate(group.wanted, group.compared + 1):
                yield Difference(what, f"{what} {count}, {want.text}", "one", "none")
            for count, got in enumerate(group.got, group.compared + 1):
                yield Difference(what, f"{what} {count}", "none", str(got.completion), got.cycle)


def _numbers(
    plan: Plan, outcome: Outcome, expected: dict[Sequence, list[Expected]]
) -> dict[Sequence, list[int]]:
    """Returns the numbers of the completions in each group; those of records only if they
    are expected.
    """
    got: dict[Sequence, list[int]] = {sequence: [] for sequence in expected}
    for number, each in enumerate(outcome.completions):
        if (sequence := plan.golden.sequence(each)) in expected or sequence != CHUNKS:
            got.setdefault(sequence, []).append(number)
    return got


def matched(plan: Plan, outcome: Outcome) -> Iterator[tuple[Expected, int]]:
    """Yields each expected entry of the ring with the number of its completion."""
    expected = plan.golden.sequences()
    for sequence, numbers in _numbers(plan, outcome, expected).items():
        yield from zip(expected.get(sequence, []), numbers, strict=False)


def _unlike(want: Completion, have: Completion) -> Iterator[tuple[str, str, str]]:
    """Yields the fields that differ, with both values."""
    for name, wanted, had in zip(Completion._fields, want, have, strict=True):
        if wanted != had:
            yield name, _number(name, wanted), _number(name, had)


def _delivered_in(outcome: Outcome, number: int) -> int | None:
    """Returns the cycle of a completion, or None if it is not known."""
    return int(outcome.delivered[number]) if number < len(outcome.delivered) else None


def _number(name: str, value: int) -> str:
    return f"{value:#x}" if name in ("tag", "cookie", "rsvdulp") else str(value)


def _taken(plan: Plan, outcome: Outcome) -> Iterator[Difference]:
    """Yields chunks that were not taken exactly once, and control messages that the host did
    not get once.
    """

    def chunks(entries: Iterable[Completion]) -> Counter[tuple[int, int]]:
        return Counter(
            (each.stream, each.tag)
            for each in entries
            if each.kind is Kind.CHUNK and each.status is ChunkStatus.TAKEN
        )

    def messages(packets: Iterable[ExceptionPacket]) -> Counter[tuple[int, int]]:
        return Counter(
            (each.stream, each.sequence) for each in packets if each.reason == Diversion.CONTROL
        )

    records = plan.golden.sequences().get(CHUNKS, ())
    for what, want, have in (
        ("chunk", chunks(each.completion for each in records), chunks(outcome.completions)),
        ("control message", messages(plan.golden.exceptions), messages(outcome.exceptions)),
    ):
        for stream, tsn in sorted(want.keys() | have.keys()):
            if want[stream, tsn] != have[stream, tsn]:
                yield Difference(
                    f"{what} taken",
                    f"stream {stream}, TSN {tsn}",
                    _times(want[stream, tsn]),
                    _times(have[stream, tsn]),
                )


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


# -- events and packets --


def _events(plan: Plan, outcome: Outcome) -> Iterator[Difference]:
    got: dict[int, list[ErrorEvent]] = {}
    for event in outcome.events:
        got.setdefault(event.stream, []).append(event)
    for error in plan.golden.errors:
        arrival = error.arrival
        where = (
            f"stream {arrival.stream.number} ({arrival.stream}),"
            f" frame {arrival.frame}, segment {arrival.order}"
        )
        events = got.get(arrival.stream.number)
        if not events:
            yield Difference("error event", where, str(error.number), "none")
            continue
        yield from _event(where, error, events.pop(0))
    for events in got.values():
        for event in events:
            yield Difference(
                "error event",
                f"stream {event.stream}, LLP sequence {event.sequence}",
                "none",
                number_text(event),
            )


def number_text(event: ErrorEvent) -> str:
    """Returns Error Type and Code with their name, or only the numbers if they have none."""
    try:
        return str(ErrorNumber(ErrorType(event.type), event.code))
    except ValueError:
        return f"{event.type:#x}/{event.code:#04x}"


def _event(where: str, error: ExpectedError, event: ErrorEvent) -> Iterator[Difference]:
    if (event.type, event.code) != error.number:
        yield Difference("error number", where, str(error.number), number_text(event))
    if event.sequence != error.arrival.position & 0xFFFFFFFF:
        yield Difference(
            "LLP sequence number of the error",
            where,
            str(error.arrival.position & 0xFFFFFFFF),
            str(event.sequence),
        )
    if event.length != error.length:
        yield Difference("segment length of the error", where, str(error.length), str(event.length))
    if event.header[: len(error.header)] != error.header:
        yield Difference(
            "header of the error",
            where,
            error.header.hex(),
            event.header[: len(error.header)].hex(),
            octets=_octets(error.header, event.header[: len(error.header)]),
        )


class _Exceptions:
    """Compares the packets of MPA in the exception stream in their order, and those of SCTP in
    theirs.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = {stream.number: str(stream) for stream in plan.streams}
        of_sctp = (isinstance(stream, SctpStream) for stream in plan.streams)
        self._mpa = {n for n, other in zip(self._names, of_sctp, strict=True) if not other}
        self._sides = {True: _Packets(), False: _Packets()}  # of MPA, of SCTP

    def _of_mpa(self, packet: ExceptionPacket) -> bool:
        return packet.reason < Diversion.FRAME and packet.stream in self._mpa

    def take(self, outcome: Outcome) -> None:
        """Takes further packets."""
        for packet in self._plan.golden.exceptions:
            self._sides[self._of_mpa(packet)].wanted.append(packet)
        for packet in outcome.exceptions:
            self._sides[self._of_mpa(packet)].got.append(packet)
        for side in self._sides.values():
            while side.wanted and side.got:
                side.compared += 1
                want, have = side.wanted.popleft(), side.got.popleft()
                if want != have:
                    side.unlike.append(self._difference(side.compared, want, have))

    def differences(self) -> Iterator[Difference]:
        """Yields the differences of all packets that were taken."""
        for side in self._sides.values():
            yield from side.unlike
            rest = zip_longest(side.wanted, side.got)
            for number, (want, have) in enumerate(rest, side.compared + 1):
                yield self._difference(number, want, have)

    def _difference(
        self, number: int, want: ExceptionPacket | None, have: ExceptionPacket | None
    ) -> Difference:
        packet = want or have
        assert packet is not None
        name = self._names.get(packet.stream, "unknown")
        if packet.reason >= Diversion.FRAME and packet.reason != Diversion.CONTROL:
            name = "diverted"
        return Difference(
            "exception stream",
            f"packet {number}, stream {packet.stream} ({name})",
            _packet_text(want, have),
            _packet_text(have, want),
            octets=_packet_octets(want, have),
        )


@dataclass
class _Packets:
    """The packets that have no counterpart yet, and the differences of the others."""

    wanted: deque[ExceptionPacket] = field(default_factory=deque)
    got: deque[ExceptionPacket] = field(default_factory=deque)
    compared: int = 0
    unlike: list[Difference] = field(default_factory=list)


def _packet_octets(
    want: ExceptionPacket | None, have: ExceptionPacket | None
) -> tuple[str, str] | None:
    """Returns the octets of two packets from the first that differs, or None."""
    if want is None or have is None or want.octets == have.octets:
        return None
    pairs = enumerate(zip(want.octets, have.octets, strict=False))
    end = min(len(want.octets), len(have.octets))
    at = next((at for at, (one, other) in pairs if one != other), end)
    return _octets(want.octets[at:], have.octets[at:])


def _packet_text(packet: ExceptionPacket | None, other: ExceptionPacket | None) -> str:
    if packet is None:
        return "none"
    text = (
        f"{len(packet.octets)} octets of stream {packet.stream} at LLP sequence {packet.sequence}"
        f" for reason {packet.reason:#05x}"
    )
    if (
        other is not None
        and len(other.octets) == len(packet.octets)
        and other.octets != packet.octets
    ):
        at = next(
            at
            for at, pair in enumerate(zip(packet.octets, other.octets, strict=True))
            if pair[0] != pair[1]
        )
        text += f", octet {at} {packet.octets[at]:#04x}"
    return text


def _counters(plan: Plan, outcome: Outcome) -> Iterator[Difference]:
    for name, expected in plan.golden.counters().items():
        got = outcome.counters[name]
        if got != expected:
            yield Difference("counter", name, str(expected), str(got))
