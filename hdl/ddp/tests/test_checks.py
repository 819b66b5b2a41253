"""Tests header parser, STag table and tagged check against the model (RFC 5041 section 7.1)."""

import random
import struct

import pytest
from amaranth import *
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from ddp_rnic.hdl.ddp.header import HeaderParser
from ddp_rnic.hdl.ddp.stag import StagTable
from ddp_rnic.hdl.ddp.tagged import CheckResult, StreamRights, TaggedCheck
from ddp_rnic.hdl.lib.stream import delayed
from ddp_rnic.hdl.lib.testing import shared, simulate
from ddp_rnic.hdl.spec import ddp
from ddp_rnic.sim.model.ddp import decode_segment, validate_tagged
from ddp_rnic.sim.model.events import ProtocolError
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.memory import Access, Region

ENTRIES = 64
LATENCY = 2 + TaggedCheck.LATENCY


class Checks(wiring.Component):
    """Connects parser, table and check as the top does; rights come two cycles after the header."""

    i: In(stream.Signature(160, always_ready=True))
    rights: In(StreamRights())
    o: Out(stream.Signature(CheckResult(), always_ready=True))

    def __init__(self):
        super().__init__()
        self.table = StagTable(ENTRIES)

    def elaborate(self, platform):
        m = Module()
        m.submodules.parser = parser = HeaderParser()
        m.submodules.table = table = self.table
        m.submodules.check = check = TaggedCheck(ENTRIES)
        wiring.connect(m, wiring.flipped(self.i), parser.i)
        wiring.connect(m, check.o, wiring.flipped(self.o))
        m.d.comb += [
            check.i.valid.eq(parser.o.valid),
            check.i.payload.eq(parser.o.payload),
            check.rights.eq(delayed(m, 2 + check.RIGHTS, self.rights, "rights")),
            table.index[0].eq(check.index),
            check.entry.eq(table.entry[0]),
        ]
        return m


def entry(region):
    """Returns the entry that the driver writes for a region."""
    return {
        "index": region.index % ENTRIES,
        "entry": {
            "valid": 1,
            "key": region.stag & 0xFF,
            "tag": region.index // ENTRIES,
            "remote_write": Access.REMOTE_WRITE in region.access,
            "remote_read": Access.REMOTE_READ in region.access,
            "bound": region.stream is not None,
            "owner": region.pd if region.stream is None else region.stream,
            "to": region.to,
            "length": region.length,
            "address": region.address,
        },
    }


def gateware_says(regions, segments, *, gap=0.0, seed=1):
    """Returns the results for ``(ulpdu, stream, pd)``, one per cycle; asserts the latency."""
    dut = shared(Checks)
    results, given, came = [], [], []
    rng = random.Random(seed)

    async def drive(ctx):
        for region in regions:
            ctx.set(dut.table.write.payload, entry(region))
            ctx.set(dut.table.write.valid, 1)
            await ctx.tick()
        ctx.set(dut.table.write.valid, 0)
        await ctx.tick().repeat(4)
        for ulpdu, number, pd in segments:
            while rng.random() < gap:
                ctx.set(dut.i.valid, 0)
                await ctx.tick()
            octets = (struct.pack(">H", len(ulpdu)) + ulpdu)[:20].ljust(20, b"\xa5")
            ctx.set(dut.i.payload, int.from_bytes(octets, "little"))
            ctx.set(dut.rights, {"stream": number, "pd": pd, "enable": 1})
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(LATENCY + 2)

    async def watch(ctx):
        cycle = 0
        async for *_, give, valid, payload in ctx.tick().sample(
            dut.i.valid, dut.o.valid, dut.o.payload
        ):
            cycle += 1
            if give:
                given.append(cycle)
            if valid:
                came.append(cycle)
                results.append(payload)

    simulate(dut, drive, background=[watch])
    assert [there - here for here, there in zip(given, came, strict=True)] == [LATENCY] * len(
        segments
    )
    return results


class Regions:
    """Looks up regions without octets: as much of a memory as the model's check needs."""

    def __init__(self, regions):
        self.regions = {region.index: region for region in regions}

    def holder(self, stag):
        return self.regions.get(stag >> 8)


def model_says(regions, ulpdu, number, pd):
    """Returns the model's error number, or None if the segment is valid."""
    try:
        header, payload = decode_segment(ulpdu)
    except ProtocolError as error:
        return error.number
    if isinstance(header, TaggedHeader):
        regions = Regions(regions)
        return validate_tagged(header, len(payload), regions, stream=number, pd=pd).number
    return None if header.version == 1 else ddp.UNTAGGED_VERSION


def tagged(stag, to, length, *, dv=1, last=1):
    return struct.pack(">BBIQ", 0x80 | last << 6 | dv, 0x5A, stag, to) + bytes(length)


def assert_agree(regions, segments, **options):
    by_stag = {region.stag: region for region in regions}
    for (ulpdu, number, pd), got in zip(
        segments, gateware_says(regions, segments, **options), strict=True
    ):
        expected = model_says(regions, ulpdu, number, pd)
        said = ddp.ErrorNumber(ddp.ErrorType(got.type), got.code) if got.error else None
        where = f"ULPDU {ulpdu[:18].hex()} of {len(ulpdu)} octets, stream {number}, PD {pd}"
        assert said == expected, f"{where}: {said}, expected {expected}"
        if ulpdu and ulpdu[0] & 0x80 and said is None:
            assert got.tagged and got.length == len(ulpdu) - ddp.TAGGED_HEADER, where
            stag, to = struct.unpack_from(">IQ", ulpdu, 2)
            if got.length:
                region = by_stag[stag]
                assert got.address == (region.address + to - region.to) % 2**64, where


REGION = Region(stag=0x00ABCD07, to=0x1000, length=0x2000, address=0x7FFF_FFFF_F003, pd=4)
BOUND = Region(stag=0x00ABCE99, to=0, length=64, address=0x4000, stream=9)
READ_ONLY = Region(
    stag=0x00ABCF01, to=0, length=64, address=0x5000, pd=4, access=Access.REMOTE_READ
)
TOP = Region(stag=0x00ABD001, to=2**64 - 4096, length=4096, address=0x9000, pd=4)
WIDE = Region(stag=0x00ABD102, to=2**33 - 5, length=2**40 + 7, address=2**50, pd=4)
REGIONS = (REGION, BOUND, READ_ONLY, TOP, WIDE)

#: Segments and their results by RFC 5041 sections 7.1 and 7.2, on stream 3 of Protection Domain 4
#: unless a case says otherwise.
CASES = {
    "whole region": (tagged(REGION.stag, 0x1000, 0x2000), None),
    "first octet": (tagged(REGION.stag, 0x1000, 1), None),
    # Section 4.1, Rsvd: "set to zero on transmit, and not checked on receive".
    "reserved bits": (tagged(REGION.stag, 0x1000, 1, dv=0x3D), None),
    "last octet": (tagged(REGION.stag, 0x2FFF, 1), None),
    "one octet before": (tagged(REGION.stag, 0x0FFF, 1), ddp.BASE_OR_BOUNDS),
    "begins one octet before": (tagged(REGION.stag, 0x0FFF, 100), ddp.BASE_OR_BOUNDS),
    "one octet past": (tagged(REGION.stag, 0x3000, 1), ddp.BASE_OR_BOUNDS),
    "ends one octet past": (tagged(REGION.stag, 0x2FFF, 2), ddp.BASE_OR_BOUNDS),
    "offset zero": (tagged(REGION.stag, 0, 1), ddp.BASE_OR_BOUNDS),
    "wrong key": (tagged(REGION.stag ^ 1, 0x1000, 1), ddp.INVALID_STAG),
    "wrong index, same slot": (tagged(REGION.stag ^ 0x0100_0000, 0x1000, 1), ddp.INVALID_STAG),
    "empty slot": (tagged(0x00ABDD07, 0x1000, 1), ddp.INVALID_STAG),
    "other domain": (tagged(REGION.stag, 0x1000, 1), ddp.STAG_NOT_ASSOCIATED, 3, 5),
    "bound stream": (tagged(BOUND.stag, 0, 64), None, 9, 5),
    "other stream": (tagged(BOUND.stag, 0, 64), ddp.STAG_NOT_ASSOCIATED, 3, 9),
    "no write access": (tagged(READ_ONLY.stag, 0, 1), ddp.INVALID_STAG),
    "no write access, other domain": (tagged(READ_ONLY.stag, 0, 1), ddp.STAG_NOT_ASSOCIATED, 3, 5),
    "up to the last but one offset": (tagged(TOP.stag, 2**64 - 4096, 4095), None),
    # Section 7.1: "A 64-bit unsigned sum of the DDP Segment payload length and the TO does not
    # wrap." With a sum of 2^64, no octet has a Tagged Offset above the last one, 2^64 - 1.
    "sum is 2^64": (tagged(TOP.stag, 2**64 - 4096, 4096), None),
    "the last octet of all": (tagged(TOP.stag, 2**64 - 1, 1), None),
    "sum is 2^64 + 1": (tagged(TOP.stag, 2**64 - 4096, 4097), ddp.TO_WRAP),
    "sum is 2^64 + 2^12": (tagged(TOP.stag, 2**64 - 4096, 8192), ddp.TO_WRAP),
    "sum is 2^64, one octet before the region": (
        tagged(TOP.stag, 2**64 - 4097, 4097), ddp.BASE_OR_BOUNDS),
    "sum wraps": (tagged(TOP.stag, 2**64 - 1, 2), ddp.TO_WRAP),
    "sum wraps, offset out of range": (tagged(REGION.stag, 2**64 - 1, 2), ddp.BASE_OR_BOUNDS),
    "beyond 4 GiB": (tagged(WIDE.stag, 2**33 - 5 + 2**32, 9), None),
    "last octets beyond 4 GiB": (tagged(WIDE.stag, 2**33 - 5 + 2**40, 7), None),
    "one octet past beyond 4 GiB": (tagged(WIDE.stag, 2**33 - 5 + 2**40, 8), ddp.BASE_OR_BOUNDS),
    "one octet before, borrow": (tagged(WIDE.stag, 2**33 - 6, 8), ddp.BASE_OR_BOUNDS),
    "zero length, anything": (tagged(0xFFFFFFFF, 2**64 - 1, 0), None),
    "version 0": (tagged(REGION.stag, 0x1000, 1, dv=0), ddp.TAGGED_VERSION),
    "version 2, invalid STag": (tagged(0, 0, 1, dv=2), ddp.TAGGED_VERSION),
    "version 3, zero length": (tagged(0, 0, 0, dv=3), ddp.TAGGED_VERSION),
    "tagged, reserved bits set": (b"\xfd" + tagged(REGION.stag, 0x1000, 1)[1:], None),
    "untagged, reserved bits set": (struct.pack(">BBIIII", 0x7D, 0x43, 0, 0, 1, 0) + b"x", None),
    "untagged": (struct.pack(">BBIIII", 0x41, 0x43, 0, 0, 1, 0) + b"x", None),
    "untagged, version 2": (
        struct.pack(">BBIIII", 0x42, 0x43, 0, 0, 1, 0) + b"x",
        ddp.UNTAGGED_VERSION,
    ),
    "no octet": (b"", ddp.LLP_FRAMING),
    "tagged header less one": (tagged(REGION.stag, 0x1000, 0)[:13], ddp.LLP_FRAMING),
    "untagged header less one": (struct.pack(">BBIIII", 0x41, 0, 0, 0, 1, 0)[:17], ddp.LLP_FRAMING),
    "control octet alone": (b"\x81", ddp.LLP_FRAMING),
}


def test_each_check_gives_the_number_that_the_rfc_names():
    segments = [(ulpdu, *(where or (3, 4))) for ulpdu, _, *where in CASES.values()]
    for (name, (_, expected, *_)), got in zip(
        CASES.items(), gateware_says(REGIONS, segments), strict=True
    ):
        said = ddp.ErrorNumber(ddp.ErrorType(got.type), got.code) if got.error else None
        assert said == expected, f"{name}: {said}, expected {expected}"


@pytest.mark.parametrize("name", CASES)
def test_the_model_gives_the_same_number(name):
    ulpdu, expected, *where = CASES[name]
    assert model_says(REGIONS, ulpdu, *(where or (3, 4))) == expected


def test_addresses_and_lengths_are_those_of_the_region():
    segments = [
        (ulpdu, *(where or (3, 4))) for ulpdu, _, *where in CASES.values() if len(ulpdu) >= 14
    ]
    assert_agree(REGIONS, segments)


@pytest.mark.parametrize("seed, gap", [(1, 0.0), (2, 0.5)])
def test_random_segments_around_every_edge(seed, gap):
    rng = random.Random(seed)
    print(f"seed {seed}")
    regions = []
    for slot in rng.sample(range(ENTRIES), 24):
        length = rng.choice((0, 1, 3, 4096, 2**20, 2**32 - 1, 2**32, 2**41 + 3))
        to = rng.choice(
            (0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - length, rng.randrange(2**63))
        )
        owner = {"pd": rng.randrange(3)} if rng.random() < 0.7 else {"stream": rng.randrange(4)}
        access = rng.choice(
            (Access.REMOTE_WRITE, Access.REMOTE_WRITE | Access.REMOTE_READ, Access.NONE)
        )
        regions.append(
            Region(
                stag=(rng.randrange(1 << 18) * ENTRIES + slot) << 8 | rng.randrange(256),
                to=to,
                length=min(length, 2**64 - to),
                address=rng.randrange(2**62),
                access=access,
                **owner,
            )
        )
    segments = []
    for _ in range(1500):
        region = rng.choice(regions)
        length = rng.choice((0, 1, 2, 63, 1446, 65521))
        edge = rng.choice(
            (
                region.to,
                region.to + region.length,
                region.to + region.length - length,
                2**64 - length,
                0,
            )
        )
        to = (edge + rng.choice((-2, -1, 0, 0, 0, 1, 2))) % 2**64
        stag = region.stag ^ rng.choice((0,) * 12 + (1, 0x80, 0x100, 1 << 31))
        segments.append(
            (
                tagged(stag, to, length, dv=1 if rng.random() < 0.97 else rng.randrange(4)),
                rng.randrange(4),
                rng.randrange(3),
            )
        )
    assert_agree(regions, segments, gap=gap, seed=seed)
