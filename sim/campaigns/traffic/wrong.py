"""Draws segments that are wrong, and damages packets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from ....hdl.lib.crc32c import differences
from ....hdl.spec.stag import Access
from ...capture.streams import QUEUES
from ...capture.traffic import fpdu_length
from ...engines.engine import (
    Packet,
)
from ...model.ddp import TaggedHeader, UntaggedHeader
from .regions import Regions
from .scene import HALF, MSN, TO, Peer, Scene
from .segments import Segments

__all__ = ["Wrong"]

#: Octets of an FPDU up to the end of its tagged header, with a marker.
_HEADERS = 2 + TaggedHeader.size + 4

_differences = cache(differences)


class Wrong:
    """Draws segments that raise an error, of each kind about as often as of any other."""

    def __init__(self, scene: Scene, regions: Regions, segments: Segments) -> None:
        self._scene, self._regions, self._segments = scene, regions, segments
        self._config, self._rng = scene.config, scene.rng
        #: Changes of a CRC that show faults in single bits of the registers that compute it.
        self._differences = _differences(scene.config.width, 4)

    def segment(self, number: int, peer: Peer) -> bytes:
        """Returns a segment that raises an error, of one of the kinds that were drawn least
        often.
        """
        found = self._untagged(peer) | self._tagged(number, peer)
        least = min(self._scene.wrongs[kind] for kind in found)
        kind = self._rng.choice([kind for kind in found if self._scene.wrongs[kind] == least])
        self._scene.wrongs[kind] += 1
        header, length = found[kind]
        if isinstance(header, bytes):
            return header
        if isinstance(header, TaggedHeader):  # some are right, such as those up to 2^64
            peer.order.sent((header.stag, header.rsvdulp), last=header.last)
        elif header.qn in peer.queues:
            peer.order.sent(header.qn, last=False)
        return header.encode() + self._rng.randbytes(length)

    def _untagged(self, peer: Peer) -> dict[str, tuple[UntaggedHeader | bytes, int]]:
        """Returns headers, each with its octets of payload, by the kind of the error."""
        rng = self._rng
        last = rng.random() < 0.5
        length = rng.choice(
            (0, 1, 2, 100, self._segments.size(), self._segments.refused(UntaggedHeader.size))
        )
        qn = rng.choice([*peer.queues] or [0])
        if rng.random() < 0.3:
            # Long buffers are rare, and only their lengths have the upper bits.
            rooms = {each: bare.free[0][1] for each, bare in peer.queues.items() if bare.free}
            qn = max(rooms, key=lambda each: rooms[each], default=qn)
        headers = {
            "untagged version": UntaggedHeader(qn, 0, 0, last, version=rng.choice((0, 2, 3))),
            "QN of many bits": UntaggedHeader(rng.getrandbits(32) | 4, 1, 0, last),
            "QN of one bit": UntaggedHeader(1 << rng.randrange(2, 32) | rng.randrange(4), 1, 0),
            "any MSN": UntaggedHeader(rng.randrange(QUEUES), rng.getrandbits(32), 0, last),
        }
        for closed in set(range(QUEUES)) - set(peer.queues):
            headers["queue that is closed"] = UntaggedHeader(closed, 1, 0, last)
        for each, bare in peer.queues.items():
            if not bare.posted:
                first = bare.following
                headers["queue without buffers"] = UntaggedHeader(each, first, 0, last)
                headers["before a queue without buffers"] = UntaggedHeader(
                    each, (first - 1) % MSN, 0, last
                )
        if (queue := peer.queues.get(qn)) and queue.posted:
            far = 1 << rng.randrange(32)
            headers["MSN behind the last buffer"] = UntaggedHeader(qn, queue.following, 0, last)
            headers["MSN far behind"] = UntaggedHeader(qn, (queue.following + far - 1) % MSN, 0)
        if queue and queue.free:
            msn, room = queue.free[0]
            before = (msn - 1 - (1 if queue.waiting else 0)) % MSN
            headers |= {
                "MSN before the first": UntaggedHeader(qn, before, 0, last),
                "MSN far before": UntaggedHeader(qn, (msn - far) % MSN, 0, last),
                "MSN at half": UntaggedHeader(qn, (msn - (1 << 31)) % MSN, 0, last),
                "MSN out of turn": UntaggedHeader(qn, queue.free[-1][0], 0, last),
                "MO": UntaggedHeader(qn, msn, room + 1, last),
                "MO at the end": UntaggedHeader(qn, msn, room, last),
                "MO far": UntaggedHeader(qn, msn, max(far, room + 1), last),
                "MO of all bits": UntaggedHeader(qn, msn, HALF, last),
            }
        found = {kind: (header, length) for kind, header in headers.items()}
        if queue and queue.free:
            payload = rng.randint(1, min(room + 1, 1500))
            start = room + 1 - payload
            found["an octet too long"] = UntaggedHeader(qn, msn, start, last), payload
            payload = rng.randint(1, 1500)
            end = (room ^ 1 << rng.randrange(32)) - payload
            if room < end + payload and end >= 0:
                found["a bit too long"] = UntaggedHeader(qn, msn, end, last), payload
        short = UntaggedHeader(qn, 1, 0).encode()[: rng.randrange(18)]
        return found | {"untagged, short": (short, 0)}

    def _tagged(self, number: int, peer: Peer) -> dict[str, tuple[TaggedHeader | bytes, int]]:
        """Returns headers, each with its octets of payload, by the kind of the error."""
        rng = self._rng
        last = rng.random() < 0.5
        length = rng.choice(
            (1, 2, 100, 1 + self._segments.size(), self._segments.refused(TaggedHeader.size))
        )
        usable = self._regions.writable(number, peer)
        region = rng.choice(usable)
        if rng.random() < 0.2:
            # Vast regions are rare, and only their lengths have the upper bits.
            region = max(usable, key=lambda each: rng.randrange(max(1, each.length >> 32)))
        if region in self._regions.parts:
            length = max(length, 2)  # so that none is placed where there is no memory
        stag, to, end = region.stag, region.to, region.to + region.length
        stags, far = self._config.stags, 1 << rng.randrange(64)
        index = stag ^ stags << 8 + rng.randrange(24 - stags.bit_length() + 1)
        headers = {
            "key": TaggedHeader(stag ^ 1 << rng.randrange(8), to, last),
            "index": TaggedHeader(index, to, last),
            "any STag": TaggedHeader(rng.getrandbits(32), to, last),
            "before the region": TaggedHeader(stag, (to - 1) % TO, last),
            "behind the region": TaggedHeader(stag, end % TO, last),
            "at the last octet": TaggedHeader(stag, (end - 1) % TO, last),
            "2^32 too far": TaggedHeader(stag, (to + max(1 << 32, region.length)) % TO, last),
            "far behind": TaggedHeader(stag, (to + max(far, region.length)) % TO, last),
            "far before": TaggedHeader(stag, (to - far) % TO, last),
            "tagged version": TaggedHeader(stag, to, last, version=rng.choice((0, 2, 3))),
        }
        host = peer.stream.destination.address
        others = [
            each.region for each in self._regions.registered.values() if each.region not in usable
        ]
        for kind, regions in (
            ("without the write right", [
                each for each in others if Access.REMOTE_WRITE not in each.access
                and (each.endpoint == host if each.stream is None else each.stream == number)
            ]),
            ("of another host", [each for each in others if each.endpoint != host]),
            ("of another stream", [
                each for each in others if each.stream not in (None, number)
            ]),
            ("revoked", [each.region for each in self._regions.gone]),
        ):  # fmt: skip
            if regions:
                other = rng.choice(regions)
                headers[kind] = TaggedHeader(other.stag, other.to, last)
        found = {kind: (header, length) for kind, header in headers.items()}
        payload = rng.randint(1, min(region.length + 1, 1500))
        start = (end + 1 - payload) % TO
        found["an octet behind the region"] = TaggedHeader(stag, start, last), payload
        payload = rng.randint(min(1, region.length), min(region.length, 1500))
        bit = 1 << rng.randrange(16)
        start = region.length - payload
        if region.length + bit - start <= 64000:
            found["a bit behind the region"] = TaggedHeader(stag, to + start, last), payload + bit
        for top in usable:
            if top in self._regions.parts:
                continue
            if top.to + top.length == TO:
                payload = rng.randint(min(1, top.length), min(top.length, 1500))
                at = TO - payload
                found["an octet behind 2^64"] = TaggedHeader(top.stag, at, last), payload + 1
                found["a bit behind 2^64"] = TaggedHeader(top.stag, at, last), payload + bit
                found["up to 2^64"] = TaggedHeader(top.stag, at, last), payload
                found["across 2^64"] = TaggedHeader(top.stag, at, last), payload + length
            elif top.to + top.length > TO - 4096:
                payload = rng.randint(min(1, top.length), min(top.length, 1500))
                at = top.to + top.length - payload
                found["from before 2^64 across"] = TaggedHeader(top.stag, at, last), TO - at + bit
        longest = 4 * self._config.longest_fpdu
        long = rng.choice((region.length + 1, longest - 22, longest - 19, longest, 64000))
        long = min(long, 64000)  # beyond that a marker cannot point back to the beginning
        start = (to + self._regions.part(region).start) % TO
        found["long"] = TaggedHeader(stag, start, last), long
        short = TaggedHeader(stag, to).encode()[: rng.randrange(14)]
        return found | {"tagged, short": (short, 0)}

    def spoiled(self, peer: Peer, packet: Packet, position: int) -> tuple[Packet, bytes]:
        """Returns a packet that is damaged on its way, and those of its octets that count.

        The walk from FPDU to FPDU needs the lengths of all of them; a packet that would end before
        one stays unchanged.
        """
        rng, octets = self._rng, bytearray(packet.octets)
        kind = rng.randrange(8)
        error = False
        if kind < 2:
            places = set(range(len(octets)))
            if not peer.stream.crc:
                # Other tagged offsets would be placed where a vast region has no memory.
                for at, _ in self._scene.cut(peer.stream, packet.octets, position):
                    places.difference_update(range(at + 4, at + _HEADERS))
            octets[rng.choice(sorted(places))] ^= 1 << rng.randrange(8)
        elif kind == 2:
            octets[-1 - rng.randrange(4)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del octets[4 * rng.randrange(1, 1 + len(octets) // 4) :]
        elif kind == 4:
            del octets[rng.randrange(1, len(octets)) :]
        elif kind == 5:
            error = True
        else:
            last = int.from_bytes(octets[-4:], "little") ^ rng.choice(self._differences)
            octets[-4:] = last.to_bytes(4, "little")
        whole = bytes(octets)
        if error or len(octets) % 4:
            # The last beat counts as empty.
            whole = whole[: (len(whole) - 1) // self._config.octets * self._config.octets]
        pieces = [*self._scene.cut(peer.stream, whole, position)]
        if not pieces:
            return packet, packet.octets
        at, length = pieces[-1]
        stated = fpdu_length(whole, at, position + at, peer.stream.markers)
        if stated is None or (stated == length and (error or len(octets) % 4)):
            return packet, packet.octets
        return replace(packet, octets=bytes(octets), error=error), whole
