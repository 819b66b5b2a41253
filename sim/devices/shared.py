"""Plays a capture on a shared device while another program on the same device is hostile.

The program plays each stream of the capture through a stream of its own, into memory of its own:
the regions that the segments address, and buffers for the untagged messages. The manager chooses
the Steering Tags, which replace those of the capture. The golden model gets the same segments.
"""

from __future__ import annotations

import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ...hdl.spec.ddp import ErrorNumber
from ...sw_driver import CQ, MR, PD, Access, Device, Opcode, ResourceExhausted, Stream, StreamError
from ...sw_driver.prm import Manager, Policy, connect
from ...sw_driver.prm.audit import Audit
from ...sw_driver.prm.client import ClientContext
from ...sw_driver.prm.server import Connection
from ..capture.streams import QUEUES, Arrival, Tagged
from ..capture.streams import Stream as CapturedStream
from ..capture.traffic import Traffic
from ..model.ddp import DataSink
from ..model.events import Delivered, Placed
from ..model.header import UntaggedHeader
from ..model.memory import Memory
from ..model.memory import Region as ModelRegion
from ..replay.regions import Region, RegionError, buffer_lengths, derive
from .hostile import Attempt, Hostile
from .live import Peer, SimTransport

__all__ = ["Shared", "play"]

#: How many messages are on their way at most, so that the program's buffers suffice.
_WINDOW = 16
#: How many buffers of each queue are posted at a time.
_POSTED = 2 * _WINDOW
#: The good program, and all connections that the hostile one makes in a round.
_CLIENTS = 8
#: An STag that no region has: it stands for one that the capture does not explain.
_NOWHERE = 0xFFFFFFFF
#: Cycles after which nothing of a packet is on its way any more.
_SETTLED = 10_000
_SECONDS = 20.0


@dataclass
class Shared:
    """The results of both programs.

    Attributes
    ----------
    streams, segments, messages, octets
        How many of each the good program received; ``octets`` are those placed by the golden model.
    refused
        The errors that ended streams of the capture, in words.
    differences
        Sentences about memory or verdicts that are not those of the golden model.
    attempts, kinds
        How many attempts the hostile program made, and of how many kinds.
    due, served
        The turns in which the good program had a request for the manager, and those of them in
        which the manager worked for it.
    slices
        How many slices of work the manager did for both programs.
    """

    streams: int = 0
    segments: int = 0
    messages: int = 0
    octets: int = 0
    refused: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    attempts: int = 0
    kinds: int = 0
    due: int = 0
    served: int = 0
    slices: int = 0


class _Counting(Manager):
    """A manager that counts the turns of each seat."""

    def __init__(self, *arguments: Any) -> None:
        self.due: Counter[int] = Counter()
        self.slices: Counter[int] = Counter()
        super().__init__(*arguments)

    def _tend(self, connection: Connection, ready: bool) -> None:
        waits = ready or connection.work is not None or connection.decoder.whole
        self.due[connection.seat] += waits and not connection.output
        super()._tend(connection, ready)

    def _go_on(self, connection: Connection, work: Any) -> None:
        self.slices[connection.seat] += 1
        super()._go_on(connection, work)


def play(traffic: Traffic, report: Callable[[Attempt], None]) -> Shared:
    """Plays the traffic over MPA, and reports each kind of attempt of the hostile program once.

    Raises
    ------
    RegionError
        The capture needs more of the device than one client has.
    """
    result = Shared()
    policy = Policy(clients=_CLIENTS, per_user=_CLIENTS)
    with (
        tempfile.TemporaryDirectory(prefix="ddp-rnic-") as folder,
        SimTransport() as sim,
        Device(sim).open() as device,
        open(Path(folder) / "audit.log", "w", encoding="utf-8") as log,
        _Counting(device, Path(folder) / "rnic.sock", policy, Audit(log)) as manager,
    ):
        serving = _Thread(manager.serve)
        try:
            _both(traffic, manager, sim, result, report)
        finally:
            manager.stop()
            serving.end()
    return result


class _Thread(threading.Thread):
    """A thread whose error :meth:`end` raises."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        """Waits for the thread's end."""
        self.join()
        if self._error is not None:
            raise self._error


def _both(
    traffic: Traffic,
    manager: _Counting,
    sim: SimTransport,
    result: Shared,
    report: Callable[[Attempt], None],
) -> None:
    """Runs both programs, until the good one is through and the other one has tried everything."""
    with connect(manager.path) as context:
        (seat,) = (each.seat for each in manager.connections.values())
        good = _Good(context, sim, traffic, result)
        hostile = Hostile(manager.path, sim, good.victim)
        over, known = threading.Event(), set[str]()

        def harm() -> None:
            while not (over.is_set() and known):
                # The part of a client is free a little after the client left.
                while manager.leaving or len(manager.connections) > 1:
                    time.sleep(0.001)
                for attempt in hostile.round():
                    result.attempts += 1
                    if attempt.what not in known:
                        known.add(attempt.what)
                        result.kinds += 1
                        report(attempt)

        other = _Thread(harm)
        try:
            good.run()
        except ResourceExhausted as error:
            raise RegionError(
                f"the capture needs more than one of {_CLIENTS} clients has of the device: {error}"
            ) from None
        finally:
            over.set()
            good.registered.set()
            other.end()
        result.due, result.served = manager.due[seat], manager.slices[seat]
        result.slices = manager.slices.total()


class _Good:
    """The program that plays a capture, and the golden model beside it."""

    def __init__(
        self, context: ClientContext, sim: SimTransport, traffic: Traffic, result: Shared
    ) -> None:
        self._context, self._sim, self._traffic, self._result = context, sim, traffic, result
        self._regions = derive(traffic).regions
        self._lengths = buffer_lengths(traffic)
        self._memory = Memory()
        self._mine: list[tuple[Region, MR]] = []
        self.registered = threading.Event()

    def victim(self) -> tuple[int, int] | None:
        """Returns STag and Tagged Offset of a region of this program, or None if it has none."""
        self.registered.wait()
        return next(((mr.stag, mr.to) for _, mr in self._mine), None)

    def run(self) -> None:
        """Plays all streams, one after the other, and compares the memory."""
        with PD(self._context) as pd, CQ(self._context) as cq:
            for region in self._regions:
                if region.length:
                    self._register(pd, region)
            self.registered.set()
            for stream in self._traffic.streams:
                if not stream.begun and not stream.position:
                    self._play(pd, cq, stream)
            for region, mr in self._mine:
                if mr.read(region.length) != self._memory.octets(mr.stag):
                    self._result.differences.append(f"memory of {region}")
                mr.revoke()

    def _register(self, pd: PD, region: Region) -> None:
        mr = pd.register(self._context.allocate(region.length), to=region.to)
        self._memory.register(
            ModelRegion(stag=mr.stag, to=region.to, length=region.length, pd=pd.number)
        )
        self._mine.append((region, mr))

    def _play(self, pd: PD, cq: CQ, captured: CapturedStream) -> None:
        result = self._result
        with Stream(pd, cq, crc=captured.crc, markers=captured.markers) as stream:
            sink = DataSink(self._memory, stream=stream.number, pd=pd.number)
            lengths = {qn: each for (number, qn), each in self._lengths.items()
                       if number == captured.number}  # fmt: skip
            buffers = _Buffers(self._context, pd, stream, sink, lengths)
            peer = Peer(self._sim, stream.number, crc=captured.crc, markers=captured.markers)
            expected: list[Delivered] = []
            taken: list[_Message] = []
            for arrival in self._traffic.arrivals:
                if arrival.stream is not captured or not arrival.digest_is_good:
                    continue
                segment = self._translated(arrival)
                peer.segments(segment)
                result.segments += 1
                for event in sink.receive(segment):
                    if isinstance(event, Placed):
                        result.octets += event.length
                    elif isinstance(event, Delivered):
                        expected.append(event)
                while len(expected) - len(taken) > _WINDOW:
                    taken += buffers.take(cq)
            while len(taken) < len(expected):
                taken += buffers.take(cq)
            want = None if sink.error is None else sink.error.number
            got = None if want is None else _error(cq)
            while self._sim.sending:
                self._sim.run(_SETTLED)
            self._sim.run(_SETTLED)
            if taken != [*map(_Message.of, expected)] or got != want:
                result.differences.append(f"verdicts on {captured}: expected {want}, got {got}")
            if not all(map(buffers.received, expected)):
                result.differences.append(f"buffers of {captured}")
        buffers.free()
        if want is not None:
            result.refused.append(str(want))
        result.streams += 1
        result.messages += len(taken)

    def _translated(self, arrival: Arrival) -> bytes:
        """Returns a segment with the STag that the manager chose for the region."""
        header, segment = arrival.header, arrival.ulpdu
        if not isinstance(header, Tagged):
            return segment
        fits = [
            (region.to <= header.to < region.to + region.length, mr.stag)
            for region, mr in self._mine
            if (region.endpoint, region.stag) == (arrival.endpoint, header.stag)
        ]
        stag = max(fits, default=(False, _NOWHERE))[1]
        return segment[:2] + struct.pack(">I", stag) + segment[6:]


class _Buffers:
    """The buffers for the untagged messages of a stream."""

    def __init__(
        self,
        context: ClientContext,
        pd: PD,
        stream: Stream,
        sink: DataSink,
        lengths: dict[int, list[int]],
    ) -> None:
        self._context, self._stream, self._sink, self._lengths = context, stream, sink, lengths
        self._posted: Counter[int] = Counter()
        self._regions: dict[int, MR] = {}
        self._memory: dict[int, memoryview] = {}
        for qn in range(QUEUES):
            sink.open_queue(qn)
            if total := sum(lengths.get(qn, ())):
                self._memory[qn] = context.allocate(total)
                self._regions[qn] = pd.register(self._memory[qn], Access.LOCAL_WRITE)
            for _ in range(_POSTED):
                self._post(qn)

    def _post(self, qn: int) -> None:
        """Posts the next buffer of a queue, if it has one, on the device and in the model."""
        number, lengths = self._posted[qn], self._lengths.get(qn, [])
        if number == len(lengths):
            return
        length, offset = lengths[number], sum(lengths[:number])
        place = {"offset": offset, "length": length} if length else {}
        self._stream.post_recv(self._regions[qn] if length else None, qn, **place)
        self._sink.post(qn, length)
        self._posted[qn] += 1

    def free(self) -> None:
        """Gives the memory back, once the stream is closed."""
        for qn, region in self._regions.items():
            region.revoke()
            self._context.free(self._memory[qn])

    def take(self, cq: CQ) -> list[_Message]:
        """Returns the messages that the device delivered on the stream, after waiting for one."""
        taken = []
        for wc in cq.wait(_SECONDS):
            if wc.stream is not self._stream:  # it was closed, and this buffer had no message
                continue
            if wc.opcode is Opcode.RECV:
                taken.append(_Message(wc.qn, wc.msn, wc.byte_len))
                self._post(wc.qn)
            else:
                taken.append(_Message(wc.stag, wc.to, wc.byte_len))
        return taken

    def received(self, event: Delivered) -> bool:
        """Returns whether a buffer has the octets that the golden model delivered."""
        header = event.header
        if not isinstance(header, UntaggedHeader) or not event.length:
            return True
        offset = sum(self._lengths[header.qn][: header.msn - 1])
        return self._regions[header.qn].read(event.length, offset) == event.message


class _Message(NamedTuple):
    """A delivered message: Queue Number and MSN, or STag and lower half of the Tagged Offset."""

    name: int
    begin: int
    length: int

    @classmethod
    def of(cls, event: Delivered) -> _Message:
        header, length = event.header, event.length
        if isinstance(header, UntaggedHeader):
            return cls(header.qn, header.msn, length)
        return cls(header.stag, event.begin & 0xFFFFFFFF, length)


def _error(cq: CQ) -> ErrorNumber | None:
    """Waits for the error of a stream, and returns its number."""
    try:
        while True:
            cq.wait(_SECONDS)
    except StreamError as error:
        return error.number
