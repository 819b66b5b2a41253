"""The memory that a replay gives to the RNIC: regions to register, and buffers for untagged
messages.

They come from a region file, or are derived from the traffic. A region file is TOML, a list of
``[[region]]`` and ``[[queue]]`` tables::

    [[region]]
    endpoint = "10.7.0.2"       # address of the host that owns the region
    stag = 0x90190600
    to = 20015889776640         # Tagged Offset of its first octet
    length = 524288
    fill = 0xEE                 # value of its octets at first; default 0
    access = "remote write"     # or "remote read", "remote read, remote write", "none"
    after_segment = 0           # registered after this many DDP Segments at the endpoint
    revoke_after_segment = 40   # revoked after this many; default never
    stream = 3                  # with SCTP: for one session only, on this SCTP stream,
    session = 0                 # with this number there, from 0; registered with the session

    [[queue]]
    endpoint = "10.7.0.2"       # address of the host that posts the buffers
    qn = 0                      # Queue Number, 0 to 3
    count = 8                   # buffers that it posts on each of its streams; 0 for none
    length = 64                 # octets of each; default 4096

A region of a session is bound to its DDP Stream. It is revoked when the next session of the stream
is set up, or when the association is over.

Segments are counted at the endpoint, tagged and untagged ones of all its streams, from 1, in the
capture's order. A Send with Invalidate also revokes the region that it names, with or without a
file, as its receiver did.

Without ``[[region]]`` tables, :func:`derive` finds the regions in the capture: an STag that is
written to is a region from the lowest to the highest octet written; so is the sink of an RDMA Read.
Octets that a receiver refused with a Terminate belong to no region, so that the replay refuses them
too.

A queue without a ``[[queue]]`` table has a sufficiently long buffer for each message in the
capture. Over SCTP the capture may lack chunks: then each message has a buffer that reaches to the
last of its captured octets. So that later messages have theirs, a message that is missing as a
whole has a buffer, too. For a message that its receiver refused with a Terminate the queue has no
buffer, or one that is too short, so that the replay refuses it too. Queues 0 to 2, which RDMAP
uses, are open on every stream; queue 3 is open where the capture names it.
"""

from __future__ import annotations

import ipaddress
import re
import struct
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, NamedTuple

from ...hdl.spec.config import LIMITS
from ...hdl.spec.ddp import (
    MESSAGE_TOO_LONG,
    NO_BUFFER,
    TAGGED_HEADER,
    UNTAGGED_HEADER,
    ErrorType,
)
from ...hdl.spec.stag import Access
from ..capture.given import read_text
from ..capture.streams import QUEUES, Arrival, Stream, Tagged, Untagged
from ..capture.traffic import Traffic

#: Most octets of all regions together: more is a mistake in a file, or the capture is too sparse to
#: derive regions from.
MEMORY_LIMIT = 1 << 29
#: The STag table grows up to this many entries. Beyond that, regions that share an entry alternate.
LARGEST_TABLE = 1 << 16
#: STags with different entries in this table have different ones in each larger table.
_SMALLEST_TABLE = LIMITS["stags"][0]
#: A derived region longer than this is split where at least ``_HOLE`` octets were not touched: the
#: STag was then used for several regions.
_LONGEST = 1 << 28
_HOLE = 1 << 24
#: Dotted keys of many parts, for which a parser makes tables without end.
_DEEP_KEY = re.compile(
    r"""(?<![\w-]) (?: (?: [\w-]++ | "[^"\n]*+" | '[^'\n]*+' ) [ \t]*+ \. [ \t]*+ ){8}""",
    re.VERBOSE,
)
#: Octets of a buffer whose length nothing shows.
_BUFFER = 4096
#: Octets by which derived buffers are longer than their messages, used in turn.
_SPARE = (0, 1, 13, 64)
#: No segment is longer: the length of an FPDU and that of a DATA chunk have 16 bits.
_LONGEST_SEGMENT = (1 << 16) - 1
#: How many queues RDMAP has (RFC 5040 section 4.1).
_RDMAP_QUEUES = 3

# RDMAP, RFC 5040 section 4.3
_READ_REQUEST = 1
_SEND_INVALIDATE = (4, 6)
#: The versions that are valid, and the Queue Number of each Send (RFC 5040 section 4.1).
_VERSIONS, _SEND_QUEUE = (0, 1), 0

#: The rights of a remote peer, by their word in a region file and in reports.
RIGHTS = {"write": Access.REMOTE_WRITE, "read": Access.REMOTE_READ}

Period = tuple[int, int | None]


class RegionError(ValueError):
    """A region file is not sound, or its regions cannot be registered. The message is one
    sentence.
    """


@dataclass(frozen=True)
class Region:
    """Octets ``to`` to ``to + length`` of an STag of a host.

    ``periods`` lists when it is registered: a pair (after, until) counts the DDP Segments that have
    arrived at the endpoint. With a ``stream``, the STag is bound to that stream; ``session`` is
    then the SCTP stream and the number of the session that the region belongs to.
    """

    endpoint: str
    stag: int
    to: int
    length: int
    fill: int = 0
    access: Access = Access.REMOTE_WRITE
    periods: tuple[Period, ...] = ((0, None),)
    stream: int | None = None
    session: tuple[int, int] | None = None

    def __str__(self) -> str:
        text = f"{self.endpoint} STag {self.stag:#010x} [{self.to:#x}, +{self.length})"
        if self.session is not None:
            text += f" of SCTP stream {self.session[0]}, session {self.session[1]}"
        return text

    @property
    def index(self) -> int:
        """The upper 24 bits of the STag."""
        return self.stag >> 8


def slot(stag: int, stags: int) -> int:
    """Returns the entry of an STag in a table of ``stags`` entries: the low bits of its index."""
    return (stag >> 8) & (stags - 1)


def table_size(regions: Iterable[Region], start: int) -> int:
    """Returns the size of the smallest table in which no two STags of one host share an entry.

    The search begins at ``start`` entries and ends at ``LARGEST_TABLE``. STags that differ only in
    the key always share an entry.
    """
    indexes: dict[str, set[int]] = {}
    for region in regions:
        indexes.setdefault(region.endpoint, set()).add(region.index)
    size = start
    while size < LARGEST_TABLE and any(
        len({index & (size - 1) for index in group}) < len(group) for group in indexes.values()
    ):
        size *= 2
    return size


def check_memory(regions: Iterable[Region]) -> None:
    """Raises for regions that are too long to simulate."""
    total = sum(region.length for region in regions)
    if total > MEMORY_LIMIT:
        raise RegionError(
            f"the regions have {total} octets in all, but at most {MEMORY_LIMIT} can be simulated:"
            " give a region file with fewer octets"
        )


@dataclass(frozen=True)
class Queue:
    """Buffers that a host posts on one Queue Number of each of its streams."""

    endpoint: str
    qn: int
    count: int
    length: int = _BUFFER

    def __str__(self) -> str:
        return f"{self.endpoint} Queue Number {self.qn}"


# -- the file --


class _Keys(NamedTuple):
    """The keys that a table may have: types, required keys, and limits that values must be
    below.
    """

    types: dict[str, type | tuple[type, ...]]
    required: tuple[str, ...]
    limits: dict[str, int]


_REGION_KEYS = _Keys(
    {
        "endpoint": str,
        "stag": int,
        "to": int,
        "length": int,
        "fill": int,
        "access": (str, list),
        "after_segment": int,
        "revoke_after_segment": int,
        "stream": int,
        "session": int,
    },
    ("endpoint", "stag", "to", "length"),
    {
        "stag": 1 << 32,
        "to": 1 << 64,
        "length": (1 << 64) + 1,
        "fill": 1 << 8,
        "stream": 1 << 16,
    },
)
_QUEUE_KEYS = _Keys(
    {"endpoint": str, "qn": int, "count": int, "length": int},
    ("endpoint", "qn", "count"),
    {"qn": QUEUES, "count": 1 << 20, "length": 1 << 32},
)


class Given(NamedTuple):
    """The contents of a region file."""

    regions: list[Region]
    queues: list[Queue]


def load_regions(path: Path, endpoints: Iterable[str] | None = None) -> Given:
    """Reads a region file. ``endpoints`` are the addresses at which the traffic arrives.

    Raises
    ------
    RegionError
        The file is missing or unsound.
    """
    try:
        text = read_text(path)
    except ValueError as error:
        raise RegionError(f"{error}: give a region file") from None
    if found := _DEEP_KEY.search(text):
        line = 1 + text.count("\n", 0, found.start())
        raise RegionError(f"{path}, line {line}: a key has too many parts for a region file")
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # of TOML, or a number of too many digits
        raise RegionError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise RegionError(f"{path}: values are nested too deeply for a region file") from None
    for key in document:
        if key not in ("region", "queue"):
            raise RegionError(
                f"{path}: a region file must have only [[region]] and [[queue]] tables, not {key!r}"
            )
    try:
        tables = [(f"region {n}", each) for n, each in enumerate(_tables(document, "region"), 1)]
        regions = [_region(where, table) for where, table in tables]
        _check_overlap(regions)
        check_memory(regions)
        tables += [(f"queue {n}", each) for n, each in enumerate(_tables(document, "queue"), 1)]
        queues = [_queue(where, table) for where, table in tables[len(regions) :]]
        _check_twice(queues)
        if not tables:
            raise RegionError("the file has neither a [[region]] nor a [[queue]] table")
        known = None if endpoints is None else list(endpoints)
        owners: list[Region | Queue] = [*regions, *queues]
        for (where, _), each in zip(tables, owners, strict=True):
            if known is not None and each.endpoint not in known:
                raise RegionError(
                    f"{where}: no stream of the capture arrives at {each.endpoint},"
                    f" only at {' and '.join(known)}"
                )
    except RegionError as error:
        raise RegionError(f"{path}: {error}") from None
    return Given(regions, queues)


def _tables(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    tables = document.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RegionError(f"{name}s must be [[{name}]] tables, with double brackets")
    return tables


def _checked(where: str, table: dict[str, Any], keys: _Keys) -> str:
    """Checks each value of a table by itself; returns the table's endpoint."""
    for key, value in table.items():
        if key not in keys.types:
            raise RegionError(f"{where}: unknown key {key!r}; use one of {', '.join(keys.types)}")
        if not isinstance(value, keys.types[key]) or isinstance(value, bool):
            name = "an integer" if keys.types[key] is int else "a string"
            raise RegionError(f"{where}: {key} must be {name}, not {value!r}")
        limit = keys.limits.get(key, 1 << 63)
        if isinstance(value, int) and not 0 <= value < limit:
            raise RegionError(f"{where}: {key} must be from 0 to {limit - 1}, not {value}")
    for key in keys.required:
        if key not in table:
            raise RegionError(f"{where}: {key} is missing")
    try:
        return str(ipaddress.ip_address(table["endpoint"]))
    except ValueError:
        raise RegionError(
            f"{where}: endpoint must be an IP address, not {table['endpoint']!r}"
        ) from None


def _queue(where: str, table: dict[str, Any]) -> Queue:
    endpoint = _checked(where, table, _QUEUE_KEYS)
    return Queue(endpoint, table["qn"], table["count"], table.get("length", _BUFFER))


def _check_twice(queues: list[Queue]) -> None:
    seen: dict[tuple[str, int], int] = {}
    for number, queue in enumerate(queues, 1):
        other = seen.setdefault((queue.endpoint, queue.qn), number)
        if other != number:
            raise RegionError(f"queues {other} and {number}: both are {queue}")


def _region(where: str, table: dict[str, Any]) -> Region:
    endpoint = _checked(where, table, _REGION_KEYS)
    if table["to"] + table["length"] > 1 << 64:
        raise RegionError(
            f"{where}: to + length is {table['to'] + table['length']:#x},"
            " past the last Tagged Offset"
        )
    after, until = table.get("after_segment", 0), table.get("revoke_after_segment")
    if until is not None and until < after:
        raise RegionError(
            f"{where}: revoke_after_segment is {until}, before after_segment, {after}"
        )
    session = None
    if "stream" in table or "session" in table:
        for key in ("stream", "session"):
            if key not in table:
                raise RegionError(f"{where}: {key} is missing: a session needs both")
        session = table["stream"], table["session"]
    return Region(
        endpoint,
        table["stag"],
        table["to"],
        table["length"],
        table.get("fill", 0),
        _access(where, table.get("access", "remote write")),
        ((after, until),),
        session=session,
    )


def _access(where: str, value: str | list[Any]) -> Access:
    """Returns the rights that a region file gives."""
    text = " ".join(map(str, value)) if isinstance(value, list) else value
    words = re.findall(r"[a-z]+", text.lower())
    if not words or set(words) - {"remote", "and", "only", "none", *RIGHTS}:
        raise RegionError(
            f"{where}: access must be remote write, remote read, both or none, not {value!r}"
        )
    return reduce(or_, (RIGHTS[word] for word in words if word in RIGHTS), Access.NONE)


def _check_overlap(regions: list[Region]) -> None:
    for number, region in enumerate(regions, 1):
        for earlier, other in enumerate(regions[: number - 1], 1):
            if region.endpoint != other.endpoint or region.index != other.index:
                continue
            if not _at_once(region.periods[0], other.periods[0]):
                continue
            if region.session and other.session and region.session != other.session:
                continue  # the capture shows when they are registered
            if region.stag != other.stag:
                raise RegionError(
                    f"regions {earlier} and {number}:"
                    f" STags {other.stag:#010x} and {region.stag:#010x} of"
                    f" {region.endpoint} have one index, which can have only one key at a time"
                )
            overlap = min(region.to + region.length, other.to + other.length) - max(
                region.to, other.to
            )
            what = f"overlap by {overlap} octets" if overlap > 0 else "are registered together"
            raise RegionError(
                f"regions {earlier} and {number} of STag {region.stag:#010x}"
                f" at {region.endpoint} {what}"
            )


def _at_once(one: Period, other: Period) -> bool:
    return (one[1] is None or other[0] < one[1]) and (other[1] is None or one[0] < other[1])


def one_after_the_other(one: Region, other: Region) -> bool:
    """Returns True if the regions belong to different sessions of one stream."""
    return (
        one.session is not None
        and other.session is not None
        and one.stream == other.stream
        and one.session[0] == other.session[0]
        and one.session != other.session
    )


# -- derivation --


@dataclass(frozen=True)
class Derived:
    """The regions of a capture, the table size that they fit in, and the streams that end early.

    ``ends`` maps the number of a stream that only its receiver's Terminate ends to the count of
    segments at its endpoint after which it is over.
    """

    regions: list[Region]
    stags: int
    ends: dict[int, int]


class Refusal(NamedTuple):
    """A Terminate (RFC 5040 section 4.8). ``arrival`` is the segment that it names, or None."""

    stream: Stream
    frame: int
    layer: int
    type: int
    code: int
    arrival: Arrival | None

    @property
    def of_tagged(self) -> bool:
        return self.arrival is not None and isinstance(self.arrival.header, Tagged)

    @property
    def of_buffer(self) -> bool:
        """True for an untagged segment that had no buffer, or too short a one (RFC 5041
        section 7.2).
        """
        return (
            (self.layer, self.type) == (1, ErrorType.UNTAGGED)
            and self.code in (NO_BUFFER.code, MESSAGE_TOO_LONG.code)
            and self.arrival is not None
            and isinstance(self.arrival.header, Untagged)
        )

    @property
    def of_bounds(self) -> bool:
        """True for base, bounds or TO wrap, in DDP's codes (RFC 5041 7.2) or RDMAP's (RFC
        5040 4.8).
        """
        return (self.layer, self.type) in ((1, 1), (0, 1)) and self.code in (
            (0x01, 0x03) if self.layer == 1 else (0x01, 0x04)
        )


def refusals(traffic: Traffic) -> list[Refusal]:
    """Returns every Terminate, with the stream that it ends and the segment that it refuses."""
    reverse = {(stream.connection, stream.destination): stream for stream in traffic.streams}
    found: list[Refusal] = []
    for arrival in traffic.terminates:
        header = arrival.header
        assert isinstance(header, Untagged)
        ended = reverse.get((arrival.stream.connection, arrival.stream.source))
        if ended is None or ended is arrival.stream or len(header.payload) < 4:
            continue
        if any(known.stream is ended for known in found):
            continue
        first, code, flags = header.payload[0], header.payload[1], header.payload[2]
        if flags & 0xE0 or not flags & 0x07:
            layer, kind, has_header = first >> 4, first & 15, bool(flags & 0x40)
        else:  # Linux siw on a little-endian host swaps the nibbles and reverses the flags
            layer, kind, has_header = first & 15, first >> 4, bool(flags & 0x02)
        named = _named(traffic, ended, arrival.frame, header.payload) if has_header else None
        found.append(Refusal(ended, arrival.frame, layer, kind, code, named))
    return found


def _named(traffic: Traffic, stream: Stream, frame: int, terminate: bytes) -> Arrival | None:
    """Returns the segment whose DDP header a Terminate carries, or None.

    It is the first segment with that header since the last time its STag was invalidated.
    """
    length = TAGGED_HEADER if len(terminate) > 6 and terminate[6] & 0x80 else UNTAGGED_HEADER
    wanted = terminate[6 : 6 + length]
    if len(wanted) < length:
        return None
    first = None
    for arrival in traffic.arrivals:
        if arrival.frame >= frame:
            break
        if arrival.endpoint == stream.destination.address:
            if invalidated(arrival) == int.from_bytes(wanted[2:6], "big"):
                first = None
        if first is None and arrival.stream is stream and arrival.ulpdu[:length] == wanted:
            first = arrival
    return first


def invalidated(arrival: Arrival) -> int | None:
    """Returns the STag that the receiver invalidates when this segment is delivered (RFC
    5040 section 5.3), or None.

    A message on another queue than that of Sends, or of a version that does not exist, invalidates
    nothing: its receiver must refuse it (section 7.2).
    """
    header = arrival.header
    if not isinstance(header, Untagged) or (header.queue, header.last) != (_SEND_QUEUE, True):
        return None
    valid = header.opcode in _SEND_INVALIDATE and arrival.ulpdu[1] >> 6 in _VERSIONS
    return header.invalidate if valid else None


@dataclass
class _Use:
    """Octets of an STag in which segments were placed, one after the other.

    ``after`` segments had arrived at the host before the first of these, and ``last`` before the
    last one; None for the sink of an RDMA Read that may still be answered.
    """

    after: int | None
    last: int | None
    stag: int
    to: int
    end: int


@dataclass
class _Host:
    """The uses and revocations of one endpoint's STags."""

    uses: list[_Use] = field(default_factory=list)
    revokes: list[tuple[int, int]] = field(default_factory=list)  # (after how many segments, STag)
    empty: dict[int, int] = field(default_factory=dict)  # TO by STag, if only bounds were refused
    latest: dict[int, _Use] = field(default_factory=dict)  # by the entry of the smallest table

    def use(self, after: int, stag: int, to: int, length: int) -> None:
        """Adds octets in which a segment was placed; neighbours of those before extend these."""
        entry = slot(stag, _SMALLEST_TABLE)
        before = self.latest.get(entry)
        if before is not None and before.stag == stag and before.to <= to <= before.end:
            before.end, before.last = max(before.end, to + length), after
            return
        self.latest[entry] = _Use(after, after, stag, to, to + length)
        self.uses.append(self.latest[entry])

    def revoke(self, after: int, stag: int) -> None:
        """Adds a revocation of an STag."""
        self.revokes.append((after, stag))
        self.latest.pop(slot(stag, _SMALLEST_TABLE), None)


def stream_ends(traffic: Traffic) -> dict[int, int]:
    """Returns when streams end that their receiver ended for a reason other than a tagged segment.

    The host executes RDMAP: it stops a stream after the segment that it refuses, or, where its
    Terminate names none, at the Terminate. The result maps the number of each stream to the count
    of segments at the endpoint.
    """
    ends = {}
    for refusal in refusals(traffic):
        if refusal.of_tagged:
            continue
        if refusal.arrival is not None:
            ends[refusal.stream.number] = refusal.arrival.order
        else:
            ends[refusal.stream.number] = max(
                (
                    arrival.order
                    for arrival in traffic.arrivals
                    if arrival.endpoint == refusal.stream.destination.address
                    and arrival.frame < refusal.frame
                ),
                default=0,
            )
    return ends


def derive(traffic: Traffic, stags: int = 1024) -> Derived:
    """Derives regions from traffic. ``stags`` is the smallest table size wanted.

    Raises
    ------
    RegionError
        The regions are too long to simulate.
    """
    hosts: dict[str, _Host] = {address: _Host() for address in traffic.endpoints}
    ends = stream_ends(traffic)
    found = refusals(traffic)
    refused = {_place(refusal.arrival): refusal for refusal in found if refusal.of_tagged}
    unheard = {_place(refusal.arrival) for refusal in found if refusal.of_buffer}
    over: set[int] = set()  # streams after their first error
    for arrival in traffic.arrivals:
        stream, header, host = arrival.stream, arrival.header, hosts[arrival.endpoint]
        unframed = traffic.unframed.get(stream.number)
        if unframed is not None and arrival.position + len(arrival.raw) > unframed:
            over.add(stream.number)
        if stream.number in over or arrival.order > ends.get(stream.number, arrival.order):
            continue
        if (
            header is None
            or not arrival.digest_is_good
            or arrival.order == traffic.misnumbered.get(stream.number)
            or _place(arrival) in refused
            or _place(arrival) in unheard
            or (isinstance(header, Untagged) and header.queue >= QUEUES)
        ):
            over.add(stream.number)
        elif isinstance(header, Tagged):
            if header.length and header.to + header.length <= 1 << 64:
                host.use(arrival.order - 1, *header)
        elif (stag := invalidated(arrival)) is not None:
            host.revoke(arrival.order, stag)
        elif header.opcode == _READ_REQUEST and header.queue == 1 and len(header.payload) >= 28:
            to, length = struct.unpack_from(">QI", header.payload, 4)
            sink = struct.unpack_from(">I", header.payload)[0]
            reader = stream.source.address
            if length and to + length <= 1 << 64 and reader in hosts:
                hosts[reader].uses.append(_Use(None, None, sink, to, to + length))
    for refusal in refused.values():
        _make_refusable(hosts[refusal.stream.destination.address], refusal)

    regions = [region for address, host in hosts.items() for region in _ranges(address, host)]
    check_memory(regions)
    written = {
        (address, use.stag)
        for address, host in hosts.items()
        for use in host.uses
        if use.after is not None
    }
    size = table_size(
        [region for region in regions if (region.endpoint, region.stag) in written], stags
    )
    timed: list[Region] = []
    for address, host in hosts.items():
        mine = [region for region in regions if region.endpoint == address]
        timed += _with_periods(mine, host, size)
    for refusal in refused.values():
        # If a region would accept the segment all the same, the receiver had a reason that the
        # capture does not show.
        if refusal.arrival is not None and _would_take(timed, refusal.arrival):
            ends[refusal.stream.number] = refusal.arrival.order - 1
    return Derived(timed, size, ends)


def _place(arrival: Arrival | None) -> tuple[str, int] | None:
    """Returns host and order of a segment, which no other segment has."""
    return None if arrival is None else (arrival.endpoint, arrival.order)


def _would_take(regions: list[Region], arrival: Arrival) -> bool:
    header, before = arrival.header, arrival.order - 1
    return isinstance(header, Tagged) and (
        header.length == 0
        or any(
            region.endpoint == arrival.endpoint
            and region.stag == header.stag
            and region.to <= header.to
            and header.to + header.length <= region.to + region.length
            and any(
                after <= before and (until is None or before < until)
                for after, until in region.periods
            )
            for region in regions
        )
    )


def _make_refusable(host: _Host, refusal: Refusal) -> None:
    """Ensures that a refused segment meets no region that would accept it."""
    assert refusal.arrival is not None and isinstance(refusal.arrival.header, Tagged)
    header, before = refusal.arrival.header, refusal.arrival.order - 1
    uses = [use for use in host.uses if use.stag == header.stag]
    if refusal.of_bounds:
        if not uses:
            # The receiver knows the STag. Registered without octets, it refuses for the same
            # reason.
            host.empty[header.stag] = header.to
    elif uses and max(use.last or 0 for use in uses) <= before:
        host.revokes.append((before, header.stag))


def _ranges(address: str, host: _Host) -> list[Region]:
    """Returns one region for each STag; several where its uses lie too far apart."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for use in host.uses:
        spans.setdefault(use.stag, []).append((use.to, use.end))
    regions = []
    for stag, ranges in spans.items():
        ranges.sort()
        low, high = ranges[0][0], max(end for _, end in ranges)
        hole = _HOLE if high - low > _LONGEST else 1 << 64
        start, end = ranges[0]
        for next_start, next_end in ranges[1:]:
            if next_start - end > hole:
                regions.append(Region(address, stag, start, end - start))
                start, end = next_start, next_end
            end = max(end, next_end)
        regions.append(Region(address, stag, start, end - start))
    regions += [
        Region(address, stag, to, 0) for stag, to in host.empty.items() if stag not in spans
    ]
    return regions


def _with_periods(regions: list[Region], host: _Host, stags: int) -> Iterator[Region]:
    """Yields each region with its periods of registration.

    A region is always registered, unless it was revoked, or alternates with others in its table
    entry.
    """
    shared: dict[int, list[Region]] = {}
    for region in regions:
        shared.setdefault(slot(region.stag, stags), []).append(region)
    # (after how many segments, 0 for a revocation, which goes first, the STag or the region used)
    events: dict[int, list[tuple[int, int, int | Region]]] = {entry: [] for entry in shared}
    for after, stag in host.revokes:
        if slot(stag, stags) in events:
            events[slot(stag, stags)].append((after, 0, stag))
    for use in host.uses:
        if use.after is not None:
            entry = slot(use.stag, stags)
            events[entry].append((use.after, 1, _user(use, shared[entry])))
    for entry, group in shared.items():
        periods = _turns(sorted(events[entry], key=lambda event: event[:2]))
        for region in group:
            if mine := periods.get(region):
                yield replace(region, periods=tuple(mine))
            elif len(group) == 1:
                yield region
            # Otherwise it is a read sink without placements, which would displace a region in use.


def _turns(events: list[tuple[int, int, int | Region]]) -> dict[Region, list[Period]]:
    """Returns the periods in which each of the regions that share a table entry has it."""
    periods: dict[Region, list[Period]] = {}
    current: Region | None = None
    since = 0
    for after, _, what in events:
        if isinstance(what, Region):
            if what is current:
                continue
            if current is not None:
                periods[current].append((since, after))
            since = after if periods else 0
            current = what
            periods.setdefault(what, [])
        elif current is not None and current.stag == what:
            periods[current].append((since, after))
            current = None
    if current is not None:
        periods[current].append((since, None))
    return periods


def _user(use: _Use, group: list[Region]) -> Region:
    return next(
        region
        for region in group
        if region.stag == use.stag and region.to <= use.to < region.to + region.length
    )


# -- untagged buffers --


def buffer_lengths(
    traffic: Traffic, queues: Iterable[Queue] = (), missing: Mapping[int, int] | None = None
) -> dict[tuple[int, int], list[int]]:
    """Returns the open queues, by stream and Queue Number, with the lengths of their buffers from
    MSN 1.

    Parameters
    ----------
    traffic
        The FPDUs in order of arrival.
    queues
        The given queues; all others have the buffers that the traffic needs.
    missing
        By stream, how many segments the capture lacks before the last one that it has. Streams of
        MPA, which end at a hole, lack none.

    Raises
    ------
    RegionError
        The buffers are too long to simulate.
    """
    given = {(queue.endpoint, queue.qn): [queue.length] * queue.count for queue in queues}
    found = _derived_lengths(traffic, missing or {})
    for stream in traffic.streams:
        for qn in range(QUEUES):
            if (lengths := given.get((stream.destination.address, qn))) is not None:
                found[stream.number, qn] = lengths
    total = sum(sum(lengths) for lengths in found.values())
    if total > MEMORY_LIMIT:
        raise RegionError(
            f"the buffers of untagged messages have {total} octets in all, but at most"
            f" {MEMORY_LIMIT} can be simulated: give a region file whose [[queue]] tables have"
            " fewer"
        )
    return found


def _derived_lengths(
    traffic: Traffic, missing: Mapping[int, int]
) -> dict[tuple[int, int], list[int]]:
    # By queue and MSN: the length of each segment's payload, and where it ends in the message.
    messages: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = {
        (stream.number, qn): {} for stream in traffic.streams for qn in range(_RDMAP_QUEUES)
    }
    for arrival in traffic.arrivals:
        header = arrival.header
        if isinstance(header, Untagged) and header.queue < QUEUES and arrival.digest_is_good:
            queue = messages.setdefault((arrival.stream.number, header.queue), {})
            length = len(header.payload)
            queue.setdefault(header.msn, []).append((length, header.mo + length))
    lengths = {}
    streams = {stream.number: stream for stream in traffic.streams}
    for (number, qn), queue in messages.items():
        stream, lost, found = streams[number], missing.get(number, 0), []
        first = stream.first_msn(qn)
        for msn in range(first, first + _count(queue, first, lost)):
            segments = queue.get(msn % (1 << 32), [(_BUFFER, _BUFFER)])
            # No segment ends past the sum of all lengths, those of missing segments included.
            octets = sum(length for length, _ in segments) + lost * _LONGEST_SEGMENT
            begun = msn == first and stream.begun
            longest = max((end for _, end in segments if end <= octets or begun), default=0)
            found.append(longest + _SPARE[msn % len(_SPARE)])
        lengths[number, qn] = found
    for refusal in refusals(traffic):
        if refusal.of_buffer:
            _shorten(lengths, refusal)
    return lengths


def _count(msns: Iterable[int], first: int, lost: int) -> int:
    """Returns how many messages a queue had, of which the capture has these MSNs.

    Each of the ``lost`` segments may have been a message. An MSN past all of them is a mistake.
    """
    places = [(msn - first) % (1 << 32) for msn in msns]
    return max([len(places), *(at + 1 for at in places if at < len(places) + lost)])


def _shorten(lengths: dict[tuple[int, int], list[int]], refusal: Refusal) -> None:
    """Ensures that a refused segment meets no buffer, or one that is too short for it.

    Linux siw reports a message that is too long as one without a buffer. If the segment is not the
    message's first one, there was a buffer.
    """
    assert refusal.arrival is not None and isinstance(refusal.arrival.header, Untagged)
    header = refusal.arrival.header
    buffers = lengths.get((refusal.stream.number, header.queue), [])
    at = (header.msn - refusal.stream.first_msn(header.queue)) % (1 << 32)
    if at >= len(buffers):
        return
    if header.payload and (header.mo or refusal.code == MESSAGE_TOO_LONG.code):
        buffers[at] = header.mo + len(header.payload) - 1
    else:
        del buffers[at:]
