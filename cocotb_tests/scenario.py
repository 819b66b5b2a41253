"""Traffic written by hand or drawn at random, with what the golden model says must come of it.

A scenario is a list of operations, for any engine, and next to it the model's memory, events and
exception packets. Host memory outside the regions is painted, and every octet of it is checked.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..hdl.spec import regs
from ..hdl.spec.ddp import LLP_CRC, LLP_FRAMING, VERSION, ErrorNumber
from ..sim.engine import (
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Operation,
    Outcome,
    Packet,
    WriteRegister,
)
from ..sim.model.ddp import DataSink, header_length, is_tagged
from ..sim.model.events import DdpError, LlpError, Placed
from ..sim.model.memory import Access, Memory, Region
from ..sim.model.mpa import MpaReceiver, MpaSender
from ..sim.replay import guard_octets

_HALF = 0xFFFFFFFF


def tagged(
    stag: int, to: int, payload: bytes, *, last: bool = True, version: int = VERSION
) -> bytes:
    """A tagged segment, octet by octet (RFC 5041 section 4.2)."""
    return struct.pack(">BBIQ", 0x80 | last << 6 | version, 0, stag, to) + payload


def untagged(
    payload: bytes, *, qn: int = 0, msn: int = 1, last: bool = True, version: int = VERSION
) -> bytes:
    """An untagged segment, octet by octet (RFC 5041 section 4.3)."""
    return struct.pack(">BBIIII", last << 6 | version, 0, 0, qn, msn, 0) + payload


@dataclass
class _Stream:
    sender: MpaSender
    receiver: MpaReceiver
    sink: DataSink
    live: bool = True


class Scenario:
    """Operations, and what must come of them.

    Attributes
    ----------
    operations : list[Operation]
    memory : NDArray[np.uint8]
        Host memory as it is before.
    events : list[ErrorEvent]
        Error events that must come; ``header`` is as long as the model knows it.
    exceptions : list[ExceptionPacket]
    counters : dict[str, int]
    """

    def __init__(self, size: int = 1 << 14) -> None:
        self.operations: list[Operation] = []
        self.memory = guard_octets(size)
        self.events: list[ErrorEvent] = []
        self.exceptions: list[ExceptionPacket] = []
        self.counters = dict.fromkeys(
            ("PLACED_SEGMENTS", "PLACED_OCTETS", "EXCEPTIONS", "ERRORS", "DROPPED"), 0
        )
        self.counters["DIGEST_ERRORS"] = 0
        self._model = Memory()
        self._regions: list[Region] = []
        self._streams: dict[int, _Stream] = {}

    # -- the host ---------------------------------------------------------------------------------

    def region(
        self,
        stag: int,
        to: int,
        length: int,
        address: int,
        *,
        pd: int | None = None,
        stream: int | None = None,
        access: Access = Access.REMOTE_WRITE,
    ) -> Region:
        """Register a region, for a Protection Domain or bound to a stream."""
        region = Region(
            stag=stag, to=to, length=length, address=address, access=access, pd=pd, stream=stream
        )
        self._model.register(region, bytearray(self.memory[address : address + length].tobytes()))
        self._regions.append(region)
        self._write_stag(region, valid=True)
        return region

    def revoke(self, region: Region) -> None:
        """Revoke a region, with nothing in flight."""
        self._model.revoke(region.stag)
        self.operations.append(Drain())
        self._write_stag(region, valid=False)

    def stream(
        self, number: int, *, pd: int, crc: bool = True, markers: bool = False, position: int = 0
    ) -> None:
        """Enable a stream, anew where it was in error."""
        self.operations.append(Drain())
        flags = _flags("STREAM_FLAGS", enable=1, crc=crc, markers=markers)
        self._write("STREAM", INDEX=number, FLAGS=flags, PD=pd)
        self._streams[number] = _Stream(
            MpaSender(crc=crc, markers=markers, position=position),
            MpaReceiver(crc=crc, markers=markers, position=position),
            DataSink(self._model, stream=number, pd=pd),
        )

    def position(self, number: int) -> int:
        """MPA stream position of what a stream carries next."""
        return self._streams[number].sender.position

    def live(self, number: int) -> bool:
        """Whether a stream has had no error."""
        return self._streams[number].live

    def _write_stag(self, region: Region, *, valid: bool) -> None:
        bound = region.stream is not None
        flags = _flags(
            "STAG_FLAGS",
            key=region.stag & 0xFF,
            valid=valid,
            remote_write=Access.REMOTE_WRITE in region.access,
            remote_read=Access.REMOTE_READ in region.access,
            bound=bound,
        )
        owner = region.stream if bound else region.pd
        assert owner is not None
        self._write(
            "STAG",
            INDEX=region.index,
            FLAGS=flags,
            OWNER=owner,
            TO_LO=region.to & _HALF,
            TO_HI=region.to >> 32,
            LEN_LO=region.length & _HALF,
            LEN_HI=region.length >> 32,
            ADDR_LO=region.address & _HALF,
            ADDR_HI=region.address >> 32,
        )

    def _write(self, window: str, **values: int) -> None:
        for name, value in {**values, "COMMIT": 1}.items():
            self.operations.append(WriteRegister(regs.address(f"{window}_{name}"), value))

    # -- the network ------------------------------------------------------------------------------

    def packet(
        self,
        number: int,
        *segments: bytes,
        spoil: Callable[[bytearray], None] | None = None,
        cut: int | None = None,
    ) -> None:
        """Send a packet with these segments.

        Parameters
        ----------
        number
            DDP Stream.
        segments
            One for each FPDU of the packet.
        spoil
            Changes the packet's octets.
        cut
            The packet ends before this octet, inside its last FPDU.
        """
        stream = self._streams[number]
        position = stream.sender.position
        octets = bytearray().join(stream.sender.send(segment) for segment in segments)
        if spoil is not None:
            spoil(octets)
        if cut is not None:
            octets = octets[:cut]
        self.operations.append(Packet(number, position & _HALF, bytes(octets)))
        if not stream.live:
            self.counters["DROPPED"] += len(segments)
            return
        frames = stream.receiver.receive(bytes(octets))
        if cut is not None:
            frames += stream.receiver.close()
        for count, frame in enumerate(frames, 1):
            self._frame(number, stream, frame)
            if not stream.live:
                self.counters["DROPPED"] += len(segments) - count
                break

    def _frame(self, number: int, stream: _Stream, frame: object) -> None:
        if isinstance(frame, LlpError):
            self._error(number, stream, frame.number, frame.length, frame.position, frame.header)
            self.counters["DIGEST_ERRORS"] += frame.number == LLP_CRC
            return
        segment, position = frame.ulpdu, frame.position  # type: ignore[attr-defined]
        whole = len(segment) >= header_length(segment) and segment[0] & 3 == VERSION
        if whole and not is_tagged(segment):
            raw = frame.raw  # type: ignore[attr-defined]
            self.exceptions.append(ExceptionPacket(number, position & _HALF, raw))
            self.counters["EXCEPTIONS"] += 1
            return
        for event in stream.sink.receive(segment):
            if isinstance(event, DdpError):
                self._error(number, stream, event.number, event.length, position, event.header)
            elif isinstance(event, Placed):
                self.counters["PLACED_SEGMENTS"] += 1
                self.counters["PLACED_OCTETS"] += event.length

    def _error(
        self,
        number: int,
        stream: _Stream,
        error: ErrorNumber,
        length: int,
        position: int,
        header: bytes,
    ) -> None:
        stream.live = False
        self.counters["ERRORS"] += 1
        self.events.append(
            ErrorEvent(
                number,
                error.type,
                error.code,
                length,
                position & _HALF,
                length.to_bytes(2, "big") + header,
            )
        )

    # -- the verdict ------------------------------------------------------------------------------

    def expected_memory(self) -> NDArray[np.uint8]:
        """Host memory as it must be after."""
        image = self.memory.copy()
        for region in self._regions:
            octets = self._model.octets(region.stag)
            image[region.address : region.address + region.length] = np.frombuffer(octets, np.uint8)
        return image

    def check(self, outcome: Outcome, memory: NDArray[np.uint8]) -> None:
        """Assert that a run did what it must."""
        expected = self.expected_memory()
        wrong = np.flatnonzero(memory != expected)
        if len(wrong):
            address = int(wrong[0])
            raise AssertionError(
                f"{len(wrong)} octets of memory are wrong, the first at {address:#x}:"
                f" expected {expected[address]:#04x}, got {memory[address]:#04x},"
                f" written in cycle {_cycle(outcome, address)}"
            )
        assert not len(outcome.stray), f"writes outside of memory: {outcome.stray[:5]}"
        got = list(outcome.events)
        for number, each in enumerate(got[: len(self.events)]):
            # The registers hold 20 octets, the model's header ends where it, or the segment, does.
            got[number] = replace(each, header=each.header[: len(self.events[number].header)])
        assert got == self.events
        assert outcome.exceptions == self.exceptions
        counted = {name: outcome.counters[name] for name in self.counters}
        if any((each.type, each.code) == LLP_FRAMING for each in self.events):
            # What counts as a segment after framing was lost is not defined.
            del counted["DROPPED"]
        assert counted == {name: self.counters[name] for name in counted}


def _flags(register: str, **values: int) -> int:
    fields = {field.name: field.low for field in regs.BY_NAME[register].fields}
    return sum(value << fields[name] for name, value in values.items())


def _cycle(outcome: Outcome, address: int) -> str:
    touched = outcome.writes[outcome.writes["address"] <= address]
    if not len(touched):
        return "none"
    row = touched[np.flatnonzero(touched["address"] == touched["address"].max())[-1]]
    return f"{row['cycle']}, beat {row['address']:#x}"


# -- random traffic -------------------------------------------------------------------------------

#: Chances of a packet that is not simply right, in percent.
_BAD, _UNTAGGED, _EMPTY = 4, 6, 3


def random_scenario(seed: int, packets: int) -> Scenario:
    """Streams of every kind into regions that lie close together, with an error now and then."""
    rng = random.Random(seed)
    scenario = Scenario(1 << 16)
    kinds = [(crc, markers) for crc in (True, False) for markers in (True, False)]
    streams = dict(zip(rng.sample(range(64), len(kinds)), kinds, strict=True))
    domains = {number: rng.randrange(1, 3) for number in streams}
    regions = _random_regions(rng, scenario, streams, domains)
    for number, (crc, markers) in streams.items():
        # The sequence number wraps on the way.
        start = (1 << 32) - 4 * rng.randrange(1, 4000)
        scenario.stream(number, pd=domains[number], crc=crc, markers=markers, position=start)
    for _ in range(packets):
        number = rng.choice(list(streams))
        if not scenario.live(number) and rng.random() < 0.5:
            crc, markers = streams[number]
            scenario.stream(
                number,
                pd=domains[number],
                crc=crc,
                markers=markers,
                position=scenario.position(number),
            )
        _random_packet(rng, scenario, number, regions[number], crc=streams[number][0])
    return scenario


def _random_regions(
    rng: random.Random,
    scenario: Scenario,
    streams: dict[int, tuple[bool, bool]],
    domains: dict[int, int],
) -> dict[int, list[Region]]:
    """Regions by the stream that may write them."""
    regions: dict[int, list[Region]] = {number: [] for number in streams}
    indices = rng.sample(range(1 << 10), 20)
    address = 0
    for index in indices:
        address += rng.choice((1, 2, 7, 8, 63, 64, 65, 129))  # guard octets
        length = rng.choice((1, 9, 100, 1000, 4096, 6000))
        if address + length >= len(scenario.memory):
            break
        number = rng.choice(list(streams))
        bound = rng.random() < 0.3
        region = scenario.region(
            (rng.randrange(1 << 14) << 10 | index) << 8 | rng.randrange(256),
            rng.choice((0, rng.randrange(1 << 64 - 13), (1 << 64) - length)),
            length,
            address,
            pd=None if bound else domains[number],
            stream=number if bound else None,
        )
        address += length
        for other in streams:
            if region.allows(stream=other, pd=domains[other]):
                regions[other].append(region)
    return regions


def _random_packet(
    rng: random.Random, scenario: Scenario, number: int, regions: list[Region], *, crc: bool
) -> None:
    segments = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        kind = rng.randrange(100)
        if kind < _UNTAGGED or not regions:
            segments.append(untagged(rng.randbytes(rng.randrange(100)), msn=rng.getrandbits(32)))
            continue
        region = rng.choice(regions)
        if kind < _UNTAGGED + _EMPTY:
            # "MUST NOT be checked for a zero-length Tagged DDP Message" (RFC 5041 section 5.2)
            segments.append(tagged(rng.getrandbits(32), rng.getrandbits(64), b""))
            continue
        length = min(rng.choice((1, 3, 8, 60, 64, 70, 500, 1460, 5000)), region.length)
        length = rng.randint(max(1, length // 2), length)
        # A sum of exactly 2^64 wraps (check 5): not within reach of what is right.
        room = region.length - length - (region.to + region.length == 1 << 64)
        if room < 0:
            continue
        offset = rng.choice((0, room, rng.randint(0, room)))
        segments.append(tagged(region.stag, region.to + offset, rng.randbytes(length)))
    if not segments:
        segments.append(tagged(0, 0, b""))
    if rng.randrange(100) < _BAD and regions:
        region = rng.choice(regions)
        segments[-1] = rng.choice(
            (
                tagged(region.stag ^ 1 << rng.randrange(32), region.to, b"x"),
                tagged(region.stag, (region.to + region.length) % (1 << 64), b"xy"),
                tagged(region.stag, region.to, b"xyz", version=rng.choice((0, 2, 3))),
                tagged(region.stag, region.to, bytes(region.length + 1)),
                untagged(b"", version=0),
                tagged(region.stag, region.to, b"")[: rng.randrange(14)],
            )
        )
    spoil = None
    if crc and rng.randrange(100) < _BAD:
        # Not in the length of an FPDU, or this would lose the framing.
        def spoil(octets: bytearray) -> None:
            octets[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)

    scenario.packet(number, *segments, spoil=spoil)
