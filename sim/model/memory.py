"""Tagged Buffers: the regions that the ULP registered (RFC 5041 sections 8.2 and 8.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Flag, auto

__all__ = ["Access", "Memory", "Octets", "Region"]

_PAGE = 1 << 12


class Octets:
    """The octets of a buffer that is written in pieces. Those that were not written are zero, and
    take no memory.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def write(self, offset: int, payload: bytes) -> None:
        """Writes octets from an offset on."""
        at = 0
        while at < len(payload):
            number, inside = divmod(offset + at, _PAGE)
            page = self._pages.setdefault(number, bytearray(_PAGE))
            piece = payload[at : at + _PAGE - inside]
            page[inside : inside + len(piece)] = piece
            at += len(piece)

    def read(self, length: int) -> bytes:
        """Returns the first octets, as many as ``length`` says."""
        zeros = bytes(_PAGE)
        pages = range(-(-length // _PAGE))
        return b"".join(self._pages.get(number, zeros) for number in pages)[:length]


class Access(Flag):
    """The rights of a Remote Peer. Section 8.3.1 item 5: "read, write, or read and write
    access".
    """

    NONE = 0
    REMOTE_WRITE = auto()
    REMOTE_READ = auto()


@dataclass(frozen=True, kw_only=True)
class Region:
    """A ULP Buffer that has an STag, for one Protection Domain or one DDP Stream (section 8.2).

    Parameters
    ----------
    stag
        Steering Tag, 32 bits: an index of 24 bits and a key of 8.
    to
        Tagged Offset of the first octet.
    length
        Length of the buffer in octets.
    address
        Host address of the first octet. The model only reports it.
    access
        Rights of the Remote Peer.
    pd
        Protection Domain ID, or None where the STag is bound to one stream.
    stream
        DDP Stream ID, or None where the STag belongs to a Protection Domain.
    """

    stag: int
    to: int
    length: int
    address: int = 0
    access: Access = Access.REMOTE_WRITE
    pd: int | None = None
    stream: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.stag < 1 << 32:
            raise ValueError(f"Region STag must be a 32-bit number, not {self.stag!r}")
        if self.to < 0 or self.length < 0 or self.to + self.length > 1 << 64:
            raise ValueError(
                "Region must lie below the Tagged Offset 2^64, "
                f"not at {self.to:#x} with {self.length} octets"
            )
        if (self.pd is None) == (self.stream is None):
            raise ValueError(
                "Region must belong to either a Protection Domain or a DDP Stream, "
                f"not to pd {self.pd!r} and stream {self.stream!r}"
            )

    @property
    def index(self) -> int:
        """The STag's upper 24 bits."""
        return self.stag >> 8

    def allows(self, *, stream: int, pd: int) -> bool:
        """Returns True if this stream may use the STag (section 8.2: by its pd, or by its
        own ID).
        """
        return self.stream == stream if self.pd is None else self.pd == pd


class Memory:
    """Holds a node's registered regions and their octets.

    The octets remain after a revocation: the ULP keeps its buffer, only the Remote Peer loses
    access.
    """

    def __init__(self) -> None:
        self._valid: dict[int, Region] = {}  # by index
        self._octets: dict[int, bytearray] = {}  # by STag
        self._regions: dict[int, Region] = {}  # by STag, revoked ones too

    def __iter__(self) -> Iterator[Region]:
        """Iterates over every region that was ever registered, in order of registration."""
        return iter(self._regions.values())

    def register(self, region: Region, octets: bytearray | None = None, *, fill: int = 0) -> Region:
        """Makes a region valid and returns it.

        Parameters
        ----------
        region
            The region. No valid region may have the same index.
        octets
            The ULP's buffer. Regions that overlap in host memory share one. None: a new buffer is
            made.
        fill
            The value of every octet of a new buffer.

        Raises
        ------
        ValueError
            A valid region has this index, or the buffer's length is not that of the region.
        """
        if region.index in self._valid:
            raise ValueError(
                f"STag {region.stag:#010x} must have an index that is not in use; "
                f"{self._valid[region.index].stag:#010x} has it: revoke that STag first"
            )
        if octets is None:
            octets = bytearray([fill]) * region.length
        if len(octets) != region.length:
            raise ValueError(
                f"Buffer of STag {region.stag:#010x} must hold {region.length} "
                f"octets, not {len(octets)}"
            )
        self._valid[region.index] = self._regions[region.stag] = region
        self._octets[region.stag] = octets
        return region

    def lookup(self, stag: int) -> Region | None:
        """Returns the valid region of this STag, or None. Both index and key must match."""
        region = self.holder(stag)
        return region if region is not None and region.stag == stag else None

    def holder(self, stag: int) -> Region | None:
        """Returns the valid region that has this STag's index, with whatever key, or None."""
        return self._valid.get(stag >> 8)

    def revoke(self, stag: int) -> bool:
        """Revokes an STag (section 8.3 item 2). Returns whether the STag was valid before."""
        if self.lookup(stag) is None:
            return False
        del self._valid[stag >> 8]
        return True

    def revoke_stream(self, stream: int) -> list[Region]:
        """Revokes every STag that is bound to this stream, and returns their regions."""
        gone = [region for region in self._valid.values() if region.stream == stream]
        for region in gone:
            del self._valid[region.index]
        return gone

    def forget(self, stag: int) -> None:
        """Drops the octets of a revoked region."""
        if self.lookup(stag) is None:
            self._regions.pop(stag, None)
            self._octets.pop(stag, None)

    def set_access(self, stag: int, access: Access) -> None:
        """Replaces a valid STag's rights (section 8.3.1 item 5), or raises `KeyError`."""
        region = self.lookup(stag)
        if region is None:
            raise KeyError(f"STag {stag:#010x} is not valid")
        self._valid[region.index] = self._regions[stag] = replace(region, access=access)

    def write(self, region: Region, to: int, payload: bytes) -> None:
        """Places octets in a region. The caller has checked the segment before."""
        start = to - region.to
        self._octets[region.stag][start : start + len(payload)] = payload

    def octets(self, stag: int) -> bytes:
        """Returns the octets of a region, be it valid or revoked."""
        return bytes(self._octets[stag])
