"""Lists the SCTP frames and chunks of a capture that are not played, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable

from ...hdl.spec.completion import ChunkStatus
from ...hdl.spec.sctp import DataFlag, Diversion, Reason
from ..model.events import ProtocolError
from ..model.sctp import Chunk, ChunkType, InitChunk, Ppid
from .pcap import LeftOut
from .sctp_frames import RawChunk, SctpFrame, with_checksums
from .sctp_traffic import Fate, Illegal, Incoming, Item, SctpTraffic

_MOST_NAMED = 5  # frames
_TSN = 1 << 32
_SETS_UP = (ChunkType.INIT, ChunkType.INIT_ACK)


class _Found:
    """Counts things by reason, with their frames.

    ``held`` are the chunks that the host has not handed back yet, with the frames that brought
    them, by association and TSN.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str], list[int]] = {}
        self.held: dict[tuple[int, int], tuple[list[int], Item]] = {}
        self._handed_back: set[tuple[int, int]] = set()

    def add(self, what: str, reason: str, frame: int) -> None:
        self._frames.setdefault((what, reason), []).append(frame)

    def hold(self, association: int, frames: list[int], item: Item, *, again: bool) -> None:
        """Keeps a chunk, unless the network repeats it after it was handed back."""
        key = association, item.tsn
        if again or key not in self._handed_back:
            self.held.setdefault(key, (frames, item))

    def hand_back(self, association: int, tsn: int) -> list[int]:
        """Returns the frames that brought a chunk, or its fragments, from the first ``tsn`` on."""
        frames: list[int] = []
        while (part := self.held.pop((association, tsn), None)) is not None:
            frames += part[0]
            if part[1].raw[1] & DataFlag.ENDING:
                break
            self._handed_back.add((association, tsn))
            tsn = (tsn + 1) % _TSN
        self._handed_back.add((association, tsn))
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
            LeftOut(len(frames), what, f"{reason}: {_named(frames)}")
            for (what, reason), frames in self._frames.items()
        ]


def _named(frames: list[int]) -> str:
    different = list(dict.fromkeys(frames))
    few = ", ".join(map(str, different[:_MOST_NAMED]))
    more = " and more" if len(different) > _MOST_NAMED else ""
    return f"frame {few}" if len(different) == 1 else f"frames {few}{more}"


def unplayed_sctp(frames: Iterable[SctpFrame], traffic: SctpTraffic | None) -> list[LeftOut]:
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
    # A frame that was assumed has the number of a frame of the capture.
    steps: dict[tuple[int, bytes], Incoming] = {}
    for step in traffic.steps if traffic else ():
        if isinstance(step, Incoming) and not step.back:
            steps[step.frame, step.octets] = step
    for frame in complete:
        if not frame.whole:
            reason = "cut short, or its IP header is damaged"
        elif not frame.checksum_is_good:
            reason = "a wrong CRC32c"
        elif frame.chunks is None:
            reason = "its chunks do not add up"
        elif bad := _bad_set_up(frame.chunks):
            reason = bad
        else:
            _of_sound(found, frame, steps.get((frame.number, frame.octets)))
            continue
        found.add("SCTP packet", reason, frame.number)
    for each in traffic.steps if traffic else ():
        if isinstance(each, Incoming) and each.end is not None:
            _of_items(found, each, each.end.number)
    return [*found.left_out(), *(traffic.undelivered if traffic else ())]


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


def _of_sound(found: _Found, frame: SctpFrame, step: Incoming | None) -> None:
    """Counts a frame that SCTP accepts if it has the association."""
    if step is not None and step.fate is Fate.TAKEN:
        return
    ddp = [chunk for chunk in frame.chunks or () if _is_ddp(chunk)]
    for _ in ddp:
        found.add(
            "DDP chunk",
            "of an association without the Adaptation Indication of DDP, or whose set-up or end is"
            " not in the capture; --assume sctp declares that it existed before the capture began",
            frame.number,
        )
    if not ddp and step is None:
        found.add("SCTP packet", "of no association with DDP", frame.number)


def _is_ddp(chunk: RawChunk) -> bool:
    return (
        chunk.type == ChunkType.DATA
        and len(chunk.octets) >= 16
        and int.from_bytes(chunk.octets[12:16], "big") in (Ppid.SEGMENT, Ppid.CONTROL)
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
        found.add("DATA chunk", "no DDP, on a stream without DDP", frame)
