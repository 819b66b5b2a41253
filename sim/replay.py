"""Traffic and regions turned into operations of simulated RNICs, with the golden model's
expectation.

Every receiving host (IP address) is a Protection Domain of its own. Hosts share one RNIC as long as
no two of their STags want the same entry of its Steering Tag table; where they do, a host gets a
further RNIC, simulated in a run of its own. So captured STags are registered as they are, and no
octet of the traffic is altered.

A packet holds the FPDUs that one TCP segment completed. Whatever the host does between two segments
(registers a region, revokes one after a Send with Invalidate, stops a stream) it does once the RNIC
is idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..hdl.spec import regs
from ..hdl.spec.config import RnicConfig
from .engine import Drain, Operation, Packet, WriteRegister
from .golden import Golden
from .regions import LARGEST_TABLE, Region, RegionError, invalidated, slot
from .traffic import Arrival, Stream, Traffic

#: Octets that are painted before and behind every region, at least.
GUARD = 128
_PAGE = 4096


@dataclass(frozen=True)
class Allotment:
    """Where a region lies in simulated host memory."""

    region: Region
    address: int

    @property
    def end(self) -> int:
        return self.address + self.region.length


@dataclass
class Plan:
    """A run of one simulated RNIC."""

    config: RnicConfig
    endpoints: tuple[str, ...]
    streams: tuple[Stream, ...]
    operations: list[Operation]
    allotments: list[Allotment]
    memory: NDArray[np.uint8]
    golden: Golden

    def expected_memory(self) -> NDArray[np.uint8]:
        """Host memory as the golden model leaves it: the regions' octets between guards."""
        image = self.memory.copy()
        for allotment in self.allotments:
            octets = self.golden.octets[allotment.region]
            image[allotment.address : allotment.end] = np.frombuffer(octets, np.uint8)
        return image

    def allotment_at(self, address: int) -> Allotment | None:
        """The region that a host address lies in."""
        return next((each for each in self.allotments if each.address <= address < each.end), None)


def plan(
    traffic: Traffic,
    regions: Iterable[Region],
    config: RnicConfig,
    ends: Mapping[int, int] | None = None,
) -> tuple[list[Plan], list[str]]:
    """Plan the runs that replay traffic, and sentences on what the configuration was changed to.

    Parameters
    ----------
    traffic
        The FPDUs in order of arrival.
    regions
        The regions of all hosts.
    config
        What the RNIC is like; tables and packet buffer grow where the traffic needs it.
    ends
        Streams that the host stops: number, and the count of segments at the endpoint after which
        it does.

    Raises
    ------
    RegionError
        The regions do not fit in a Steering Tag table.
    """
    regions = list(regions)
    config, notes = _grown(traffic, regions, config)
    hosts = list(dict.fromkeys([*traffic.endpoints, *(region.endpoint for region in regions)]))
    plans = [
        _plan_device(traffic, members, regions, config, dict(ends or {}))
        for members in _share_devices(hosts, regions, config.stags)
    ]
    if len(plans) > 1:
        notes.append(
            f"STags of different hosts collide,"
            f" so {len(plans)} RNICs are simulated one after the other"
        )
    return plans, notes


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()


def _grown(
    traffic: Traffic, regions: list[Region], config: RnicConfig
) -> tuple[RnicConfig, list[str]]:
    notes = []
    longest = max((len(arrival.raw) for arrival in traffic.arrivals), default=0)
    if longest > 4 * config.longest_fpdu:
        while longest > 4 * config.longest_fpdu:
            config = replace(config, buffer_octets=2 * config.buffer_octets)
        notes.append(
            f"an FPDU of {longest} octets needs a packet buffer of {config.buffer_octets} octets"
        )
    if len(traffic.streams) > config.streams:
        config = replace(config, streams=_power_of_two(len(traffic.streams)))
        notes.append(
            f"{len(traffic.streams)} streams need a stream table of {config.streams} entries"
        )
    stags = config.stags
    while (pair := _in_one_slot(regions, stags)) is not None:
        if stags >= LARGEST_TABLE:
            raise RegionError(
                f"STags {pair[0].stag:#010x} and {pair[1].stag:#010x} of {pair[0].endpoint}"
                " want the same entry of"
                f" the Steering Tag table, even with {stags} entries"
            )
        stags *= 2
    if stags > config.stags:
        config = replace(config, stags=stags)
        notes.append(f"the STags need a Steering Tag table of {stags} entries to have one each")
    return config, notes


def _in_one_slot(regions: list[Region], stags: int) -> tuple[Region, Region] | None:
    """Two regions of one host that want the same table entry at the same time."""
    holders: dict[tuple[str, int], list[Region]] = {}
    for region in regions:
        group = holders.setdefault((region.endpoint, slot(region.stag, stags)), [])
        for other in group:
            if _at_once(region, other):
                return other, region
        group.append(region)
    return None


def _at_once(one: Region, other: Region) -> bool:
    return any(
        (a_until is None or b_after < a_until) and (b_until is None or a_after < b_until)
        for a_after, a_until in one.periods
        for b_after, b_until in other.periods
    )


def _share_devices(endpoints: list[str], regions: list[Region], stags: int) -> list[list[str]]:
    devices: list[tuple[list[str], set[int]]] = []
    for endpoint in endpoints:
        wanted = {slot(region.stag, stags) for region in regions if region.endpoint == endpoint}
        for members, taken in devices:
            if not taken & wanted:
                members.append(endpoint)
                taken |= wanted
                break
        else:
            devices.append(([endpoint], set(wanted)))
    return [members for members, _ in devices]


def _plan_device(
    traffic: Traffic,
    endpoints: list[str],
    regions: list[Region],
    config: RnicConfig,
    ends: dict[int, int],
) -> Plan:
    domains = {endpoint: number for number, endpoint in enumerate(endpoints, 1)}
    streams = tuple(stream for stream in traffic.streams if stream.destination.address in domains)
    allotments, memory = _lay_out([region for region in regions if region.endpoint in domains])
    golden = Golden(streams, domains)
    for allotment in allotments:
        golden.add(allotment.region)
    host = _Host(config, golden, domains, allotments)
    for stream in streams:
        host.enable(stream)
    due = _Schedule(
        allotments,
        {stream.number: ends[stream.number] for stream in streams if stream.number in ends},
        streams,
    )
    for endpoint in endpoints:
        host.act(due.at(endpoint, 0))
    for arrival in traffic.arrivals:
        if arrival.endpoint in domains:
            host.take(arrival)
            host.act(due.at(arrival.endpoint, arrival.order))
    host.finish()
    return Plan(config, tuple(endpoints), streams, host.operations, allotments, memory, golden)


@dataclass(frozen=True)
class _Action:
    """Something that the host does to the RNIC. Exactly one is given."""

    revoke: Allotment | None = None
    register: Allotment | None = None
    stop: int | None = None


class _Schedule:
    """What the host does once so many segments have arrived."""

    def __init__(
        self, allotments: list[Allotment], ends: dict[int, int], streams: Iterable[Stream]
    ) -> None:
        self._actions: dict[tuple[str, int], list[_Action]] = {}
        for allotment in allotments:
            for _, until in allotment.region.periods:
                if until is not None:
                    self._add(allotment.region.endpoint, until, _Action(revoke=allotment))
        for allotment in allotments:
            for after, until in allotment.region.periods:
                if until is None or until > after:
                    self._add(allotment.region.endpoint, after, _Action(register=allotment))
        for stream in streams:
            if stream.number in ends:
                self._add(
                    stream.destination.address, ends[stream.number], _Action(stop=stream.number)
                )

    def _add(self, endpoint: str, after: int, action: _Action) -> None:
        self._actions.setdefault((endpoint, after), []).append(action)

    def at(self, endpoint: str, count: int) -> list[_Action]:
        return self._actions.get((endpoint, count), [])


class _Host:
    """Gives each event to the golden model and to the RNIC's list of operations alike."""

    def __init__(
        self,
        config: RnicConfig,
        golden: Golden,
        domains: dict[str, int],
        allotments: list[Allotment],
    ) -> None:
        self.operations: list[Operation] = []
        self._config = config
        self._golden = golden
        self._domains = domains
        self._by_region = {allotment.region: allotment for allotment in allotments}
        self._waiting: list[Arrival] = []
        self._busy = False  # a packet went in since the RNIC was last idle

    def take(self, arrival: Arrival) -> None:
        """An FPDU arrives; if it asks to invalidate a STag, that is done."""
        if self._waiting and (self._waiting[0].stream, self._waiting[0].frame) != (
            arrival.stream,
            arrival.frame,
        ):
            self._flush()
        self._waiting.append(arrival)
        received = self._golden.receive(arrival)
        stag = invalidated(arrival)
        if received and stag is not None:
            region = self._golden.registered(arrival.endpoint, stag)
            if region is not None:
                self.act([_Action(revoke=self._by_region[region])])

    def act(self, actions: Iterable[_Action]) -> None:
        """Carry actions out, with the RNIC idle."""
        for action in actions:
            if action.revoke is not None:
                if self._golden.revoke(action.revoke.region):
                    self._write_stag(action.revoke, valid=False)
            elif action.register is not None:
                self._golden.register(action.register.region)
                self._write_stag(action.register, valid=True)
            elif action.stop is not None:
                self._golden.stop(action.stop)
                self._write("STREAM", INDEX=action.stop, FLAGS=0, PD=0)

    def enable(self, stream: Stream) -> None:
        flags = _field("STREAM_FLAGS", enable=1, crc=stream.crc, markers=stream.markers)
        self._write(
            "STREAM", INDEX=stream.number, FLAGS=flags, PD=self._domains[stream.destination.address]
        )

    def finish(self) -> None:
        self._flush()
        self.operations.append(Drain())

    def _flush(self) -> None:
        if not self._waiting:
            return
        first = self._waiting[0]
        self.operations.append(
            Packet(
                first.stream.number,
                first.position & 0xFFFFFFFF,
                b"".join(arrival.raw for arrival in self._waiting),
            )
        )
        self._waiting = []
        self._busy = True

    def _write_stag(self, allotment: Allotment, *, valid: bool) -> None:
        region = allotment.region
        flags = _field(
            "STAG_FLAGS",
            key=region.stag & 0xFF,
            valid=valid,
            remote_write=region.remote_write,
            remote_read=region.remote_read,
        )
        self._write(
            "STAG",
            INDEX=region.index,
            FLAGS=flags,
            OWNER=self._domains[region.endpoint],
            TO_LO=region.to & 0xFFFFFFFF,
            TO_HI=region.to >> 32,
            LEN_LO=region.length & 0xFFFFFFFF,
            LEN_HI=region.length >> 32,
            ADDR_LO=allotment.address & 0xFFFFFFFF,
            ADDR_HI=allotment.address >> 32,
        )

    def _write(self, window: str, **values: int) -> None:
        self._flush()
        if self._busy:
            self.operations.append(Drain())
            self._busy = False
        for name, value in values.items():
            self.operations.append(WriteRegister(regs.address(f"{window}_{name}"), int(value)))
        self.operations.append(WriteRegister(regs.address(f"{window}_COMMIT"), 1))


def _field(register: str, **values: int) -> int:
    fields = {field.name: field for field in regs.BY_NAME[register].fields}
    return sum(int(value) << fields[name].low for name, value in values.items())


def _lay_out(regions: list[Region]) -> tuple[list[Allotment], NDArray[np.uint8]]:
    """Put regions into host memory, each at the offset in its page that its TO has, as pinned pages
    do.
    """
    allotments = []
    end = 0
    for region in regions:
        address = end + GUARD + (region.to - end - GUARD) % _PAGE
        allotments.append(Allotment(region, address))
        end = address + region.length
    size = -(-(end + GUARD) // _PAGE) * _PAGE
    memory = guard_octets(size)
    for allotment in allotments:
        memory[allotment.address : allotment.end] = allotment.region.fill
    return allotments, memory


def guard_octets(size: int) -> NDArray[np.uint8]:
    """What memory outside the regions holds: octets that depend on the address, with no short
    period.
    """
    memory = np.empty(size, np.uint8)
    step = 1 << 20
    for start in range(0, size, step):
        addresses = np.arange(start, min(start + step, size), dtype=np.uint64)
        memory[start : start + step] = (addresses * np.uint64(0x9E3779B1) >> np.uint64(24)).astype(
            np.uint8
        )
    return memory
