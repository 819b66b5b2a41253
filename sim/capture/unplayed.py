"""Lists the SCTP frames and chunks of a capture that are not played, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ...hdl.spec.completion import ChunkStatus
from ...hdl.spec.sctp import DataFlag, Diversion, Reason
from ..model.events import ProtocolError
from ..model.sctp import Chunk, ChunkType, InitChunk, Ppid
from .pcap import LeftOut
from .sctp_frames import Ends, RawChunk, SctpFrame, with_checksums
from .sctp_traffic import Fate, Illegal, Incoming, Item, SctpTraffic
from .spool import Numbers

_MOST_NAMED = 5  # frames
_TSN = 1 << 32
_I_DATA, _BEGINNING, _UNORDERED = 64, 2, 4  # RFC 8260 section 2.1: chunk type and flags
#: The other chunks of extensions of SCTP without which a receiver's TSNs would be others.
_SKIPS = {192: ("FORWARD TSN chunk", "RFC 3758"), 194: ("I-FORWARD-TSN chunk", "RFC 8260")}
_SETS_UP = (ChunkType.INIT, ChunkType.INIT_ACK)


class _Found:
    """Counts things by reason, with their frames.

    ``held`` are the chunks that the host has not handed back yet, with the frames that brought
    them, by association and TSN.
    """

    def __init__(self) -> None:
        self._things: dict[tuple[str, str], _Things] = {}
        self.held: dict[tuple[int, int], tuple[list[int], Item]] = {}
        self._handed_back: dict[int, Numbers] = {}  # TSNs, by association

    def add(self, what: str, reason: str, frame: int) -> None:
        things = self._things.setdefault((what, reason), _Things())
        things.count += 1
        if len(things.frames) <= _MOST_NAMED:
            things.frames[frame] = None

    def hold(self, association: int, frames: list[int], item: Item, *, again: bool) -> None:
        """Keeps a chunk, unless the network repeats it after it was handed back."""
        key = association, item.tsn
        if again or item.tsn not in self._handed_back.get(association, ()):
            self.held.setdefault(key, (frames, item))

    def hand_back(self, association: int, tsn: int) -> list[int]:
        """Returns the frames that brought a chunk, or its fragments, from the first ``tsn`` on."""
        frames: list[int] = []
        handed_back = self._handed_back.setdefault(association, Numbers())
        while (part := self.held.pop((association, tsn), None)) is not None:
            frames += part[0]
            if part[1].raw[1] & DataFlag.ENDING:
                break
            handed_back.add(tsn)
            tsn = (tsn + 1) % _TSN
        handed_back.add(tsn)
        return frames

    def left_out(self) -> list[LeftOut]:
        for frames, item in self.held.values():
            reason = (
                f"a fragment of a message on {item.stream} that did not come whole"
                if item.diversion is Diversion.FRAGMENT
                else f"held until an answer on {item.stream} opens a session, which none did"
            )
            for frame in frames:
                self.add("DATA chunk", reason, frame)
        return [
            LeftOut(things.count, what, f"{reason}: {_named([*things.frames])}")
            for (what, reason), things in self._things.items()
        ]


@dataclass
class _Things:
    """Counts the things that have one reason, and keeps the first of their frames."""

    count: int = 0
    frames: dict[int, None] = field(default_factory=dict)


def _named(frames: list[int]) -> str:
    few = ", ".join(map(str, frames[:_MOST_NAMED]))
    more = " and more" if len(frames) > _MOST_NAMED else ""
    return f"frame {few}" if len(frames) == 1 else f"frames {few}{more}"


def unplayed_sctp(frames: Sequence[SctpFrame], traffic: SctpTraffic | None) -> list[LeftOut]:
    """Returns the parts of SCTP frames that are not played, with the reasons.

    Parameters
    ----------
    frames
        All SCTP frames of the capture.
    traffic
        The traffic that the RNICs get from them, or None if there is none.
    """
    found = _Found()
    complete, _ = with_checksums(frames)
    known: dict[Ends, set[tuple[str, str]]] = {}
    for end in traffic.ends if traffic else ():
        known.setdefault(Ends(end.peer.port, end.local.port, end.tag), set()).update(end.paths)
    interleaved = _Interleaved()
    for frame, step in _with_steps(complete, traffic):
        if not frame.whole:
            reason = "cut short, or its IP header is damaged"
        elif len(frame.packet) % 4:
            reason = "its length is not a multiple of 4, RFC 9260 section 3.2"
        elif not frame.checksum_is_good:
            reason = "a wrong CRC32c"
        elif frame.chunks is None:
            reason = "its chunks do not add up"
        elif bad := _bad_set_up(frame.chunks):
            reason = bad
        else:
            assert frame.ends is not None
            paths = known.get(frame.ends)
            counted = interleaved.count(found, frame, played=paths is not None)
            _of_sound(found, frame, step, paths, counted=counted)
            continue
        found.add("SCTP packet", reason, frame.number)
    for each in traffic.steps if traffic else ():
        if isinstance(each, Incoming) and each.end is not None:
            _of_items(found, each, each.end.number)
    return [*found.left_out(), *(traffic.undelivered if traffic else ())]


def _with_steps(
    frames: Iterable[SctpFrame], traffic: SctpTraffic | None
) -> Iterator[tuple[SctpFrame, Incoming | None]]:
    """Yields each frame with the step in which it arrives, or with None."""
    arriving = (
        step
        for step in (traffic.steps if traffic else ())
        if isinstance(step, Incoming) and not step.back
    )
    groups = groupby(arriving, key=lambda step: step.frame)
    number, steps = -1, dict[bytes, Incoming]()
    for frame in frames:
        while number < frame.number and (group := next(groups, None)) is not None:
            # A frame that was assumed has the number of a frame of the capture.
            number, steps = group[0], {step.octets: step for step in group[1]}
        yield frame, steps.get(frame.octets) if number == frame.number else None


def _bad_set_up(chunks: Iterable[RawChunk]) -> str:
    """Returns why the model refuses a chunk that sets an association up, or nothing."""
    for chunk in chunks:
        if chunk.type in _SETS_UP:
            try:
                InitChunk.decode(Chunk(chunk.type, chunk.flags, chunk.value))
            except ProtocolError as error:
                name = "INIT" if chunk.type == ChunkType.INIT else "INIT ACK"
                return f"its {name} is refused, {error}"
    return ""


def _of_sound(
    found: _Found,
    frame: SctpFrame,
    step: Incoming | None,
    paths: set[tuple[str, str]] | None,
    *,
    counted: bool,
) -> None:
    """Counts a frame that SCTP accepts if it has the association.

    ``paths`` are those of its association, if that is played. ``counted``: the frame has chunks
    that are counted already.
    """
    if step is not None and step.fate is Fate.TAKEN:
        return
    if paths is None:
        reason = (
            "of an association without the Adaptation Indication of DDP, or whose set-up is"
            " not in the capture; --assume sctp declares that it existed before the capture began"
        )
    elif frame.path in paths:
        reason = "before the set-up of its association was complete, or after its end"
    else:
        reason = "from or to an address that its association does not have, RFC 9260 section 5.1.2"
    ddp = [chunk for chunk in frame.processed if _is_ddp(chunk)]
    for _ in ddp:
        found.add("DDP chunk", reason, frame.number)
    if not ddp and step is None and not counted:
        found.add("SCTP packet", "of no association with DDP", frame.number)


class _Interleaved:
    """Counts chunks of extensions of SCTP that no RNIC takes, above all I-DATA with DDP.

    Only the first fragment of a user message says what the message is.
    """

    def __init__(self) -> None:
        self._begun: set[tuple[Ends, bytes, int]] = set()

    def count(self, found: _Found, frame: SctpFrame, *, played: bool) -> bool:
        """Counts the chunks of a frame; returns whether there were any.

        ``played``: the association is played, so that TSNs matter.
        """
        assert frame.ends is not None
        counted = False
        for chunk in frame.chunks or ():
            if self._has_ddp(frame.ends, chunk):
                what, source = "I-DATA chunk", "RFC 8260; RFC 5043 has DDP in DATA chunks"
            elif played and chunk.type in _SKIPS:
                what, source = _SKIPS[chunk.type]
            else:
                continue
            found.add(what, f"no RNIC takes this chunk, {source}", frame.number)
            counted = True
        return counted

    def _has_ddp(self, ends: Ends, chunk: RawChunk) -> bool:
        if chunk.type != _I_DATA or len(chunk.octets) < 20:
            return False
        message = ends, chunk.octets[8:10] + chunk.octets[12:16], chunk.flags & _UNORDERED
        if chunk.flags & _BEGINNING and _has_ddp(chunk.octets[16:20]):
            self._begun.add(message)
        return message in self._begun


def _has_ddp(ppid: bytes) -> bool:
    return int.from_bytes(ppid, "big") in (Ppid.SEGMENT, Ppid.CONTROL)


def _is_ddp(chunk: RawChunk) -> bool:
    return (
        chunk.type == ChunkType.DATA and len(chunk.octets) >= 16 and _has_ddp(chunk.octets[12:16])
    )


def _of_items(found: _Found, step: Incoming, association: int) -> None:
    """Counts the chunks of an accepted packet, some of which are handed back later."""
    for item in step.items:
        frames = found.hand_back(association, item.tsn) if step.back else [step.frame]
        if item.status is ChunkStatus.HELD:
            found.hold(association, frames, item, again=step.back)
        for frame in frames:
            _of_item(found, frame, item)


def _of_item(found: _Found, frame: int, item: Item) -> None:
    """Counts the outcome of a chunk that one of these frames brought."""
    for said in item.outcome:
        if isinstance(said, Illegal) and said.reason is not Reason.LIMIT:
            found.add("DATA chunk", f"it ends the session of {item.stream}, {said.why}", frame)
    if item.why:
        found.add("DATA chunk", f"refused on {item.stream}, {item.why}", frame)
    if item.status is ChunkStatus.SILENT:
        found.add("DATA chunk", f"after the session of {item.stream} was ended", frame)
    elif item.status is ChunkStatus.OUTSIDE:
        found.add("DATA chunk", f"outside the window of {item.stream}", frame)
    elif item.diversion is Diversion.DATA and item.stream is None:
        reason = (
            "on an SCTP stream that is not among those of its association, RFC 9260 section 5.1.1"
            if _has_ddp(item.raw[12:16])
            else "no DDP, on a stream without DDP"
        )
        found.add("DATA chunk", reason, frame)
    elif item.diversion is Diversion.CHUNK and item.raw[0] == ChunkType.DATA:
        reason = "after a chunk that ends its packet, RFC 9260 sections 3, 3.2 and 3.3.7"
        found.add("DATA chunk", reason, frame)
