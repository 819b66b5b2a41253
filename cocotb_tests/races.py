"""Plays segments in flight, with a revocation at any cycle among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..hdl.spec import commands, regs
from ..hdl.spec.ddp import ErrorNumber, ErrorType
from ..sim.engines.choice import load
from ..sim.engines.engine import (
    Drain,
    Meanwhile,
    Operation,
    Outcome,
    Packet,
    Poll,
    Stalls,
    Wait,
    WriteRegister,
    operations_of,
)
from ..sim.model.memory import Region
from ..sim.model.mpa import MpaSender
from .scenario import Scenario, device_of, tagged, untagged

#: Cycles from the beginning of a race to its first packet: time for an earlier revocation.
LEAD = 24

Command = tuple[WriteRegister | Poll, ...]


def write(**values: int) -> tuple[WriteRegister, ...]:
    """Returns operations that write registers, by name."""
    return tuple(WriteRegister(regs.address(name), value) for name, value in values.items())


def revoke_stag(stag: int) -> Command:
    """Returns a command that revokes an STag, and waits until the revocation is done."""
    return tuple(operations_of(commands.revoke_stag(stag)))


def revoke_stream(number: int) -> Command:
    """Returns a command that revokes a stream, and waits until the revocation is done."""
    return tuple(operations_of(commands.revoke_stream(number)))


def errors(outcome: Outcome) -> list[tuple[int, ErrorNumber]]:
    """Returns stream and number of each error event, in order."""
    return [(each.stream, ErrorNumber(ErrorType(each.type), each.code)) for each in outcome.events]


def probe(number: int, region: Region, offset: int = 0) -> Packet:
    """Returns the first packet of a stream: one octet for a region."""
    return Packet(number, 0, MpaSender().send(tagged(region.stag, region.to + offset, b"!")))


@dataclass(frozen=True)
class Sent:
    """A segment, and the host address of its payload."""

    stream: int
    address: int
    payload: bytes

    @property
    def octets(self) -> range:
        """The host addresses of the payload."""
        return range(self.address, self.address + len(self.payload))


@dataclass
class Run:
    """The outcome of a race."""

    outcome: Outcome
    memory: NDArray[np.uint8]
    octets: int  #: octets of a beat

    @property
    def done(self) -> int:
        """The cycle in which the revocation read back done."""
        return int(self.outcome.polled[0])

    @property
    def errors(self) -> list[tuple[int, ErrorNumber]]:
        """Stream and number of each error event, in order."""
        return errors(self.outcome)

    def last_write(self, spans: Iterable[range]) -> int:
        """Returns the last cycle of the bus with a beat or response of a write to ``spans``."""
        outcome, last = self.outcome, -1
        start, beats = outcome.bursts["address"], outcome.bursts["beats"]
        for starts, octets, cycles in (
            (outcome.writes["address"], self.octets, outcome.writes["cycle"]),
            (start - start % self.octets, beats * self.octets, outcome.responses),
        ):
            for span in spans:
                touching = (starts + octets > span.start) & (starts < span.stop)
                last = max(last, int(cycles[touching].max(initial=0)))
        return last


class Race:
    """Plays segments, each of which is a message and a packet of its own.

    Attributes
    ----------
    host : Scenario
        Regions, streams and buffers that are set up before the first segment is sent.
    sent : list[Sent]
    """

    def __init__(self) -> None:
        self.host = Scenario(1 << 15, ring=8)
        self.sent: list[Sent] = []
        self._first = 0  # the operation after the set-up
        self._over: int | None = None  # segments in the race

    def tagged(self, number: int, region: Region, offset: int, payload: bytes) -> None:
        """Sends a tagged message of one segment."""
        segment = tagged(region.stag, region.to + offset, payload)
        self._send(segment, Sent(number, region.address + offset, payload))

    def untagged(
        self, number: int, qn: int, msn: int, address: int, payload: bytes, rsvdulp: int = 0
    ) -> None:
        """Sends an untagged message of one segment, for the buffer at an address."""
        segment = untagged(payload, qn=qn, msn=msn, rsvdulp=rsvdulp)
        self._send(segment, Sent(number, address, payload))

    def over(self) -> None:
        """Ends the race: later segments are sent when all else, and the revocation, is done."""
        self.host.operations.append(Drain())
        self._over = len(self.sent)

    def _send(self, segment: bytes, sent: Sent) -> None:
        if not self.sent:
            self._first = len(self.host.operations)
        self.host.packet(sent.stream, segment)
        self.sent.append(sent)

    def play(
        self,
        width: int,
        command: Command = (),
        offset: int = 0,
        *,
        then: Sequence[Operation] = (),
        after: Sequence[Operation] = (),
        stalls: Stalls,
    ) -> Run:
        """Runs the race.

        Parameters
        ----------
        command
            Operations of the host during the race, ``offset`` cycles from its beginning.
        then
            Operations of the host when all segments are sent.
        after
            Operations when all is done. Interrupts are masked, so that the host's timing is known.
        """
        operations = self.host.operations
        memory = self.host.memory.copy()
        outcome = load("compiled").run(
            device_of(width),
            [
                *operations[: self._first],
                *operations_of(commands.mask_interrupts(event=True, completion=True)),
                Meanwhile(offset, command),
                Wait(LEAD),
                *operations[self._first :],
                *then,
                Drain(),
                *after,
            ],
            memory,
            ring=self.host.ring,
            stalls=stalls,
        )
        return Run(outcome, memory, width // 8)

    def offsets(self, run: Run) -> range:
        """Returns the cycles from before the first packet to after the last response of ``run``."""
        first, last = run.outcome.taken["first"][0], run.outcome.responses.max()
        return range(int(last - first) + LEAD + 20)

    def placed(self, run: Run, number: int) -> int:
        """Returns how many segments of a stream, from its first on, were placed.

        Asserts that memory and completions are just those of these segments.
        """
        count = sum(each.stream == number for each in run.outcome.completions)
        expected = self.host.memory.copy()
        completions = []
        left = count
        for sent, completion in zip(self.sent, self.host.completions, strict=True):
            if sent.stream == number:
                left -= 1
                if left < 0:
                    continue
            completions.append(completion)
            expected[sent.address : sent.octets.stop] = np.frombuffer(sent.payload, np.uint8)
        assert run.outcome.completions == completions
        unlike = run.memory != expected
        unlike[self.host.ring.octets.start : self.host.ring.octets.stop] = False
        wrong = np.flatnonzero(unlike)
        assert not len(wrong), f"{len(wrong)} octets are wrong, the first at {wrong[0]:#x}"
        assert not run.outcome.stray
        return count

    @property
    def streams(self) -> set[int]:
        """The streams that send."""
        return {sent.stream for sent in self.sent}

    def spans(self, number: int) -> list[range]:
        """Returns the host addresses of a stream's segments in the race."""
        return [sent.octets for sent in self.sent[: self._over] if sent.stream == number]
