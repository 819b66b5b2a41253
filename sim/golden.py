"""What the RNIC must do with a replay, according to the golden model.

The model's MPA and Data Sink receive every FPDU. Untagged segments are the host's for now: they
must leave whole on the exception stream, and only those that the RNIC itself refuses (DDP version,
truncated header) reach the Data Sink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..hdl.spec.ddp import LLP_CRC, VERSION, ErrorNumber
from .engine import ExceptionPacket
from .model.ddp import DataSink, TaggedHeader, header_length, is_tagged
from .model.events import DdpError, LlpError, Placed
from .model.memory import Access, Memory
from .model.memory import Region as ModelRegion
from .model.mpa import MpaReceiver
from .regions import Region
from .traffic import Arrival, Stream

_LENGTH_FIELD = 2


@dataclass(frozen=True)
class ExpectedError:
    """The error event that a segment must raise. ``header`` starts with the LLP's length, as the
    event's does.
    """

    arrival: Arrival
    number: ErrorNumber
    header: bytes
    length: int


@dataclass
class StreamCounts:
    """What became of the segments of a stream."""

    segments: int = 0
    placed: int = 0
    octets: int = 0
    exceptions: int = 0
    errors: int = 0
    dropped: int = 0


@dataclass
class _Receiver:
    mpa: MpaReceiver
    sink: DataSink
    counts: StreamCounts = field(default_factory=StreamCounts)
    live: bool = True


class Golden:
    """The receivers of some streams, each with the regions of its own host.

    Parameters
    ----------
    streams
        The streams that arrive.
    domains
        The Protection Domain of each host, by address.
    """

    def __init__(self, streams: Iterable[Stream], domains: dict[str, int]) -> None:
        self.domains = domains
        self.memories = {address: Memory() for address in domains}
        self.octets: dict[Region, bytearray] = {}
        self.errors: list[ExpectedError] = []
        self.exceptions: list[ExceptionPacket] = []
        #: The segment that wrote, with the region's octets that it wrote, in order.
        self.placements: list[tuple[Arrival, Region, int, int]] = []
        self._registered: dict[tuple[str, int], Region] = {}
        self._receivers = {
            stream.number: _Receiver(
                MpaReceiver(crc=stream.crc, markers=stream.markers),
                DataSink(
                    self.memories[stream.destination.address],
                    stream=stream.number,
                    pd=domains[stream.destination.address],
                ),
            )
            for stream in streams
        }

    @property
    def counts(self) -> dict[int, StreamCounts]:
        """By number of the stream."""
        return {number: receiver.counts for number, receiver in self._receivers.items()}

    def add(self, region: Region) -> None:
        """Give a region its octets, before it is registered."""
        self.octets[region] = bytearray([region.fill]) * region.length

    def register(self, region: Region) -> None:
        """Register a region; its octets outlive revocation."""
        access = (Access.REMOTE_WRITE if region.remote_write else Access.NONE) | (
            Access.REMOTE_READ if region.remote_read else Access.NONE
        )
        self.memories[region.endpoint].register(
            ModelRegion(
                stag=region.stag,
                to=region.to,
                length=region.length,
                access=access,
                pd=self.domains[region.endpoint],
            ),
            self.octets[region],
        )
        self._registered[region.endpoint, region.stag] = region

    def revoke(self, region: Region) -> bool:
        """Revoke a region; whether it was registered."""
        if self._registered.get((region.endpoint, region.stag)) is not region:
            return False
        del self._registered[region.endpoint, region.stag]
        return self.memories[region.endpoint].revoke(region.stag)

    def registered(self, endpoint: str, stag: int) -> Region | None:
        """The region that a STag of a host stands for now."""
        return self._registered.get((endpoint, stag))

    def stop(self, stream: int) -> None:
        """The host disables a stream."""
        self._receivers[stream].live = False

    def receive(self, arrival: Arrival) -> bool:
        """Take an FPDU; whether it was received without an error, on a stream that is live."""
        receiver = self._receivers[arrival.stream.number]
        counts = receiver.counts
        counts.segments += 1
        if not receiver.live:
            counts.dropped += 1
            return False
        for fpdu in receiver.mpa.receive(arrival.raw):
            if isinstance(fpdu, LlpError):
                receiver.sink.fail(fpdu)
                self._fail(receiver, arrival, fpdu)
                return False
            segment = fpdu.ulpdu
            if (
                len(segment) >= header_length(segment)
                and not is_tagged(segment)
                and segment[0] & 3 == VERSION
            ):
                self.exceptions.append(
                    ExceptionPacket(arrival.stream.number, fpdu.position & 0xFFFFFFFF, fpdu.raw)
                )
                counts.exceptions += 1
                continue
            for event in receiver.sink.receive(segment):
                if isinstance(event, DdpError):
                    self._fail(receiver, arrival, event)
                    return False
                if isinstance(event, Placed):
                    counts.placed += 1
                    counts.octets += event.length
                    if event.length and isinstance(event.header, TaggedHeader):
                        region = self._registered[arrival.endpoint, event.header.stag]
                        self.placements.append(
                            (arrival, region, event.header.to - region.to, event.length)
                        )
        return True

    def _fail(self, receiver: _Receiver, arrival: Arrival, error: DdpError | LlpError) -> None:
        receiver.live = False
        receiver.counts.errors += 1
        self.errors.append(
            ExpectedError(
                arrival,
                error.number,
                error.length.to_bytes(_LENGTH_FIELD, "big") + error.header,
                error.length,
            )
        )

    def counters(self) -> dict[str, int]:
        """The counter registers that the RNIC must end with."""
        counts = list(self.counts.values())
        return {
            "PLACED_SEGMENTS": sum(each.placed for each in counts),
            "PLACED_OCTETS": sum(each.octets for each in counts),
            "EXCEPTIONS": sum(each.exceptions for each in counts),
            "ERRORS": sum(each.errors for each in counts),
            "DROPPED": sum(each.dropped for each in counts),
            "DIGEST_ERRORS": sum(error.number == LLP_CRC for error in self.errors),
        }
