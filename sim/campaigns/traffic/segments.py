"""Draws segments that are right."""

from __future__ import annotations

from ...model.ddp import TaggedHeader, UntaggedHeader
from ...model.mpa import MARKER_SPACING
from .scene import AROUND, LONG, Peer, Scene

__all__ = ["Segments"]

_NEAR = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
_FAR = (479, 480, 481, 511, 512, 513, 1023, 1024, 1025, 1426, 1440, 1460, 2048, 4095, 4096, 4097)


class Segments:
    """Draws lengths of payload, and segments that are right."""

    def __init__(self, scene: Scene) -> None:
        self._config, self._rng = scene.config, scene.rng

    def length(self, peer: Peer) -> int:
        """Octets of a tagged segment's payload; with markers, its FPDU ends near one at times."""
        rng = self._rng
        if not peer.stream.markers or rng.random() < 0.8:
            return self.size()
        around = AROUND + TaggedHeader.size
        to_marker = -peer.sender.position % MARKER_SPACING - around
        return max(0, to_marker + 4 * rng.randint(-2, 2) + rng.choice((0, 0, MARKER_SPACING - 4)))

    def size(self) -> int:
        """Returns the octets of a payload."""
        rng = self._rng
        chance = rng.randrange(1000)
        if chance < 500:
            return rng.randrange(100)
        if chance < 700:
            return rng.choice(_NEAR)
        if chance < 750:
            return rng.choice(_FAR)
        if chance < 800:
            return self.power_of_two()
        if chance < 975:
            return rng.randrange(1500)
        if chance < 997:
            return rng.randrange(9000)
        most = 4 * self._config.longest_fpdu - AROUND - TaggedHeader.size
        return most - rng.choice((0, 0, 0, 1, 2, 3, 4, 8, rng.randrange(most)))

    def power_of_two(self) -> int:
        """Returns the octets of a payload whose FPDU has a power of two words, or a few more."""
        rng, longest = self._rng, self._config.longest_fpdu
        power = 1 << rng.randrange(3, longest.bit_length())
        words = min(power + rng.randrange(2 * self._config.words + 2), longest)
        return 4 * words - AROUND - UntaggedHeader.size - rng.randrange(8)

    def refused(self, header: int) -> int:
        """Octets of a payload that is refused: with them the FPDU takes up to the whole of the
        exception queue, or does not fit.
        """
        most = self._config.exception_octets - AROUND - header
        return most + 4 - self._rng.choice((0, 4, 8, self._rng.randrange(most)))

    def tagged(self, peer: Peer, stag: int, to: int, payload: bytes, begun: object = None) -> bytes:
        """Returns a tagged segment, of a message that has ``begun``, or of a new one."""
        rng = self._rng
        rsvdulp = begun[1] if isinstance(begun, tuple) else rng.getrandbits(8)
        last = rng.random() < 0.7 or not payload
        peer.order.sent((stag, rsvdulp), last=last)
        header = TaggedHeader(stag, to, last, rsvdulp, reserved=rng.getrandbits(4))
        return header.encode() + payload

    def message(self, qn: int, msn: int, room: int, cut: int | None = None) -> list[bytes]:
        """Returns the segments of a message, cut at ``cut`` places.

        The last segment is last, the others are in any order; some repeat octets, or leave some
        out.
        """
        rng = self._rng
        length = rng.choice((room, room, rng.randint(0, room)))
        if cut is None:
            cut = rng.choice((0, 0, 0, 1, 1, 2, 5))
        cuts = sorted(rng.choices(range(length + 1), k=cut))
        pieces = list(zip([0, *cuts], [*cuts, length], strict=True))
        if room > LONG:
            # Some octets at any place, and the last ones.
            length = max(1000, length)
            starts = [rng.getrandbits(rng.randint(8, 31)) % (room - 1000) for _ in range(4)]
            pieces = [(start, start + rng.randrange(1000)) for start in starts]
            pieces.append((length - rng.randint(0, 1000), length))
        if rng.random() < 0.3:
            rng.shuffle(pieces)
        if rng.random() < 0.05:
            at = rng.randint(0, room)
            pieces.insert(0, (at, rng.randint(at, room if room <= LONG else min(room, at + 999))))
        rsvdulp = rng.getrandbits(40)
        return [
            UntaggedHeader(
                qn, msn, start, number == len(pieces), rsvdulp, reserved=rng.getrandbits(4)
            ).encode()
            + rng.randbytes(end - start)
            for number, (start, end) in enumerate(pieces, 1)
        ]
