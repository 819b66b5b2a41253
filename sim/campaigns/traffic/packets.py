"""Draws the next packet: of which stream it is, and its segments."""

from __future__ import annotations

from dataclasses import replace

from ....hdl.spec.ddp import WAITING
from ...engines.engine import (
    Packet,
)
from ...model.ddp import TaggedHeader
from ...model.mpa import MARKER_SPACING, MpaSender
from .regions import Regions
from .scene import HALF, TO, WITH_MARKERS, Peer, Scene
from .segments import Segments
from .streams import Streams
from .wrong import Wrong

__all__ = ["Packets"]

#: One segment in this many is wrong.
_WRONG = 80
#: The most streams that fail right after each other, because the bus refuses their writes; and
#: octets of a segment.
_REFUSED, _REFUSED_OCTETS = 13, 40


class Packets:
    """Draws packets."""

    def __init__(
        self, scene: Scene, regions: Regions, segments: Segments, wrong: Wrong, streams: Streams
    ) -> None:
        self._scene, self._regions, self._segments, self._wrong, self._streams = (
            scene,
            regions,
            segments,
            wrong,
            streams,
        )
        self._config, self._rng, self._host = scene.config, scene.rng, scene.host
        self._golden, self._numbers, self._peers = scene.golden, scene.numbers, scene.peers
        self.turns: list[int] = []
        self._outsiders: dict[int, Peer] = {}

    def _turn(self) -> int:
        """Returns the next stream: each in turn, a few of them, or any."""
        rng = self._rng
        if not self.turns:
            kind = rng.randrange(5)
            if kind == 0:
                self.turns = rng.sample(self._numbers, len(self._numbers))
            elif kind == 1:
                some = rng.sample(self._numbers, min(2, len(self._numbers)))
                self.turns = some * rng.randrange(1, 30)
            elif kind == 2:
                self.turns = [rng.choice(self._numbers)] * rng.randrange(1, 30)
            elif kind == 3:
                # The two numbers differ in one bit.
                number = rng.choice(self._numbers)
                near = {number ^ 1 << bit for bit in range(12)} & set(self._numbers)
                self.turns = [number, rng.choice(sorted(near or {number}))] * rng.randrange(1, 30)
            else:
                self.turns = rng.choices(self._numbers, k=50)
        return self.turns.pop()

    def send_next(self) -> None:
        rng, golden = self._rng, self._golden
        number = self._turn()
        if rng.randrange(300) == 0:
            self._outsider(number)
            return
        live = golden.live(number)
        if not live:
            chance = rng.random()
            if chance < 0.3:
                self._streams.enable(number)
            elif chance < 0.7:
                return
        peer = self._peers[number]
        if rng.randrange(1000 if live else 10) == 0:
            self._tiny(number, peer)
            return
        if self._scene.bus_errors and golden.live(number) and rng.randrange(_WRONG) == 0:
            self._bus_error(number, peer)
            return
        segments = []
        # A segment that may exceed the number of messages is the last of its packet.
        most = max(1, (WAITING - golden.kept(number)) // 2)
        for _ in range(min(most, rng.choice((1, 1, 1, 1, 2, 3, 6)))):
            if rng.randrange(_WRONG) == 0:
                self._host.end_aside()  # the fault may depend on the last buffer
                segments.append(self._wrong.segment(number, peer))
            else:
                segments.append(self._right(number, peer))
        self._streams.send(number, peer, segments, spoil=rng.randrange(2 * _WRONG) < len(segments))

    def _outsider(self, number: int) -> None:
        """Sends FPDUs of a stream whose number is too large, and differs from that of one of the
        RNIC's streams in one bit. They are dropped.
        """
        rng = self._rng
        bits = self._config.streams.bit_length() - 1
        outside = number | 1 << rng.randrange(bits, 16)
        if outside not in self._golden.counts:
            stream = replace(self._peers[number].stream, number=outside)
            self._golden.start(stream)
            self._golden.stop(outside)
            self._scene.stopped.add(outside)
            self._outsiders[outside] = Peer(stream, MpaSender(crc=stream.crc), {})
        # No marker could be in them, so they are the same ones with markers and without.
        position = rng.getrandbits(23) * MARKER_SPACING + 4 * rng.randint(1, 60)
        self._outsiders[outside].sender.position = position
        header = TaggedHeader(rng.getrandbits(32), rng.getrandbits(64), True, rng.getrandbits(8))
        segments = [header.encode() + rng.randbytes(rng.randrange(20)) for _ in range(3)]
        self._streams.send(outside, self._outsiders[outside], segments)

    def _tiny(self, number: int, peer: Peer) -> None:
        """Sends a packet of FPDUs that have no room for a header, or for which the packet buffer
        has no room; some CRCs are spoiled. The first one fails the stream, if it is live.
        """
        rng = self._rng
        self._host.end_aside()
        position, pieces = peer.sender.position, []
        sizes = [rng.choice((0, 0, 1, 2, 3, 7, 13)) for _ in range(rng.choice((1, 2, 5, 20, 60)))]
        least = 4 * self._config.longest_fpdu - 5  # of a ULPDU that does not fit
        if least < WITH_MARKERS and rng.random() < 0.2:
            sizes = [*sizes[:2], rng.randint(least, min(least + 400, WITH_MARKERS)), *sizes[2:5]]
        for size in sizes:
            piece = bytearray(peer.sender.send(rng.randbytes(size)))
            if rng.random() < 0.3:
                piece[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)
            pieces.append(bytes(piece))
        octets = b"".join(pieces)
        arrivals = self._streams.arrivals(peer, octets, position)
        self._scene.wrongs["tiny" if self._golden.live(number) else "tiny, dropped"] += 1
        self._host.receive(Packet(number, position & HALF, octets), arrivals)

    def _bus_error(self, number: int, peer: Peer) -> None:
        """Sends a segment for a region of which the bus refuses an octet.

        The RNIC is idle before it and after it, so that the effect is known.
        """
        region, host = self._regions.faulty[peer.stream.destination.address][0].region, self._host
        host.resume()
        host.drain()
        start = self._rng.randrange(region.length)
        payload = self._rng.randbytes(1 + self._rng.randrange(region.length - start))
        self._write_into_fault(number, peer, start, payload)
        host.drain()

    def bus_errors_at_once(self) -> None:
        """Sends segments whose writes the bus refuses, on some streams right after each other."""
        rng, host = self._rng, self._host
        live = [number for number in self._numbers if self._golden.live(number)]
        host.resume()
        host.drain()
        for number in rng.sample(live, min(len(live), rng.randint(2, _REFUSED))):
            peer = self._peers[number]
            allotment, fault = self._regions.faulty[peer.stream.destination.address]
            start = max(0, fault - allotment.address - rng.randrange(_REFUSED_OCTETS))
            length = min(rng.randint(1, _REFUSED_OCTETS), allotment.length - start)
            self._write_into_fault(number, peer, start, rng.randbytes(length))
        host.drain()

    def _write_into_fault(self, number: int, peer: Peer, start: int, payload: bytes) -> None:
        """Sends a segment for a region that the bus refuses an octet of."""
        allotment, fault = self._regions.faulty[peer.stream.destination.address]
        region, position = allotment.region, peer.sender.position
        octets = peer.sender.send(
            self._segments.tagged(peer, region.stag, region.to + start, payload)
        )
        arrivals = self._streams.arrivals(peer, octets, position)
        self._host.receive(Packet(number, position & HALF, octets), arrivals)
        # The whole beat is faulty, because a marker inside it causes two writes.
        beat = fault // self._config.octets * self._config.octets - allotment.address
        if start < beat + self._config.octets and beat < start + len(payload):
            self._golden.refuse_write(arrivals[0], range(beat, beat + self._config.octets))

    def _right(self, number: int, peer: Peer) -> bytes:
        rng = self._rng
        chance = rng.randrange(100)
        begun = peer.order.choose(rng)
        if isinstance(begun, int) or (begun is None and chance < 40):
            if (segment := self._untagged(number, peer, begun)) is not None:
                return segment
            if begun is not None:  # without a buffer the stream has to fail
                return self._wrong.segment(number, peer)
        if begun is None and chance < 44:
            # "MUST NOT be checked for a zero-length Tagged DDP Message" (RFC 5041 section 5.2)
            return self._segments.tagged(peer, rng.getrandbits(32), rng.getrandbits(64), b"")
        regions = self._regions.writable(number, peer)
        if isinstance(begun, tuple):
            regions = [region for region in regions if region.stag == begun[0]]
            if not regions:
                return self._segments.tagged(peer, begun[0], 0, b"", begun)
        region = rng.choice(regions)
        part = self._regions.part(region)
        length = min(self._segments.length(peer), len(part))
        room = len(part) - length
        offset = rng.choice((0, room, rng.randint(0, room), rng.randint(0, room)))
        # A segment of no octets may be at the end.
        to = (region.to + part.start + offset) % TO
        return self._segments.tagged(peer, region.stag, to, rng.randbytes(length), begun)

    def _untagged(self, number: int, peer: Peer, begun: object) -> bytes | None:
        """Returns the next segment on one of the open queues, or on the one that has
        ``begun``; or None.
        """
        if not peer.queues:
            return None
        qn = begun if isinstance(begun, int) else self._rng.choice([*peer.queues])
        queue = peer.queues[qn]
        if not queue.waiting:
            if not queue.free:
                if not self._golden.live(number):
                    return None
                self._streams.fill(number, qn, queue)
                if not queue.free:  # its buffers are not usable yet
                    return None
            queue.waiting.extend(self._segments.message(qn, *queue.free.popleft()))
        segment = queue.waiting.popleft()
        peer.order.sent(qn, last=not queue.waiting)
        return segment
