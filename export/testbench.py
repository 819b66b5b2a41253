"""Writes ``tb_rnic.v``: a testbench for the exported Verilog that any Verilog simulator runs.

Its text is the file of that name beside this module, in plain Verilog. This module adds, as
constants, the values that depend on the export and on the facts in ``hdl/spec``; and, where the
text has ``// COMMANDS``, the register accesses of the device's commands.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..hdl.spec import commands, regs
from ..hdl.spec.commands import Wait, Write
from ..hdl.spec.completion import FIELDS, OCTETS, Kind
from ..hdl.spec.config import RnicConfig
from ..hdl.spec.net import insert
from ..hdl.spec.sctp import Diversion, Function
from ..hdl.spec.stag import Access
from ..sim.engines.engine import Ring
from ..sim.model.header import Header, TaggedHeader, UntaggedHeader
from ..sim.model.mpa import MpaSender
from ..sim.model.sctp import Ppid
from ..sim.replay import load
from .registers import registers

_TEXT = Path(__file__).with_name("tb_rnic.v")
_WAIVERS = Path(__file__).with_name("rnic.vlt")
_PLACE = "  // CONSTANTS\n"

# Host memory of the testbench, at an address that uses the upper half.
_MEMORY, _MEMORY_OCTETS = 0x1_2345_0000, 0x4000
_RING = 0x2_0000_1000
_BUFFER_OCTETS = 200
# The region begins at an odd address shortly before a page's end, and is just long enough.
_REGION, _REGION_TO, _REGION_OCTETS = _MEMORY + 0xF01, 0x8000_0000_0000_0FF0, 0x1000
_STAG = 0x00000511
_COOKIE = 0x00C0_0000
_DOMAIN = 7
#: Payload of the first and the second Write, and of the Send.
_LENGTHS = 37, 150, 75
#: By the LLP: stream, first payload octet of its messages, offsets of the Writes in the region,
#: and the posted buffer.
_LLPS = {
    "MPA": (1, 0x20, (1, 0xDD), _MEMORY + 0x2005),
    "SCTP": (2, 0x90, (0x300, 0x4F3), _MEMORY + 0x2207),
}


def text(config: RnicConfig) -> str:
    """Returns ``tb_rnic.v``, which belongs beside ``rnic.v``."""
    steps = _commands(config)
    plain = re.sub(
        r"^( *)// COMMANDS (\w+)\n",
        lambda found: "".join(found[1] + line for line in _lines(steps.get(found[2], ()))),
        _TEXT.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    words = set(re.findall(r"\w+", plain))
    constants = (f"  {line}\n" for line in _constants(config, words))
    return plain.replace(_PLACE, "".join(constants), 1)


def waivers(config: RnicConfig) -> str:
    """Returns ``rnic.vlt``: Verilator's expected warnings, each with its reason."""
    return _WAIVERS.read_text(encoding="utf-8")


def _constants(config: RnicConfig, words: set[str]) -> Iterator[str]:
    """Yields the constants; of registers and fields only those that the text names."""
    packets = dict(_packets(config))
    yield f"localparam WIDTH = {config.width};"
    for llp, there in (("MPA", config.mpa), ("SCTP", config.sctp)):
        if there:
            yield f"`define RNIC_{llp}"
    yield "// Addresses of registers, and values that they are set to."
    for register in registers(config):
        if register.name in words:
            yield f"localparam [11:0] {register.name} = 12'h{register.address:03x};"
    for name, value in _values(config).items():
        yield f"localparam [31:0] {name} = 32'h{value:08x};"
    yield "// An entry of a completion queue: its octets, and the lowest bit of each field."
    yield f"localparam ENTRY_OCTETS = {OCTETS};"
    for field in FIELDS:
        # Without SCTP, the text compares the other fields alone.
        needed = config.sctp or field.name not in ("kind", "status")
        if (name := f"ENTRY_{field.name.upper()}") in words and needed:
            yield f"localparam {name} = {8 * field.octet + field.bit};"
    for kind in (Kind.CHUNK, Kind.CONTROL) * config.sctp:
        yield f"localparam [3:0] KIND_{kind.name} = 4'd{kind:d};"
    yield "// Host memory, the region that the STag names, and the messages."
    for name, value in {"MEMORY": _MEMORY, "RING": _RING, "REGION": _REGION,
                        "REGION_TO": _REGION_TO}.items():  # fmt: skip
        yield f"localparam [63:0] {name} = 64'h{value:016x};"
    yield f"localparam MEMORY_OCTETS = {_MEMORY_OCTETS};"
    ring = _ring(config)
    yield f"localparam RING_SIZE = {ring.size}, RINGS_OCTETS = {len(ring.octets)};"
    for name, length in zip(("FIRST", "SECOND", "SEND"), _LENGTHS, strict=True):
        yield f"localparam {name}_OCTETS = {length};"
    for llp, (stream, tag, offsets, buffer) in _LLPS.items():
        if f"{llp}_SEND" in packets:
            yield f"localparam [15:0] {llp}_STREAM = 16'd{stream};"
            yield f"localparam [7:0] {llp}_TAG = 8'h{tag:02x};"
            for name, address in (
                ("FIRST", _REGION + offsets[0]),
                ("SECOND", _REGION + offsets[1]),
                ("BUFFER", buffer),
            ):
                yield f"localparam [63:0] {llp}_{name} = 64'h{address:016x};"
    yield "// Packets, their first octet highest."
    longest = max(map(len, packets.values()))
    yield f"localparam LONGEST = {longest};"
    for name, octets in packets.items():
        yield f"localparam {name}_OCTETS = {len(octets)};"
        digits = octets.ljust(longest, b"\0").hex()
        yield f"localparam [8*LONGEST-1:0] {name} ="
        yield f"  {8 * longest}'h{digits};"


def _ring(config: RnicConfig) -> Ring:
    """Returns the rings of the completion queues: with SCTP, a second one for SCTP's owner."""
    owner = config.completion_queues * config.sctp
    return Ring(_RING, config.owner_entries.bit_length() if config.sctp else 4, owner)


def _values(config: RnicConfig) -> dict[str, int]:
    """Returns the 32-bit values to which registers are set, and with which they are compared."""
    values = {
        "ID_VALUE": regs.ID,
        "STAG": _STAG,
        "COOKIE_VALUE": _COOKIE,
        "STATUS_EVENT": regs.pack("STATUS", event=1),
        "STATUS_IDLE": regs.pack("STATUS", idle=1),
        "ARM": regs.pack("CQ_DOORBELL", arm=1),
        "OWNER": config.completion_queues,
    }
    if config.sctp:
        values |= {
            "FUNCTION_ACCEPT": Function.ACCEPT,
            "ANSWER_TAKEN": regs.pack("SESSION_ANSWER", taken=1),
            "REASON_CONTROL": Diversion.CONTROL,
        }
    return values


def _commands(config: RnicConfig) -> dict[str, Sequence[Write | Wait]]:
    """Returns the steps of the commands that the testbench gives, by their names in its text."""
    steps: dict[str, Sequence[Write | Wait]] = {
        "RING": _ring(config).command(interrupts=True),
        "REGION": commands.set_stag(
            _STAG, Access.REMOTE_WRITE, pd=_DOMAIN, to=_REGION_TO, length=_REGION_OCTETS,
            address=_REGION,
        ),
    }  # fmt: skip
    for llp, (stream, _, _, buffer) in _LLPS.items():
        steps[f"{llp}_STREAM"] = (
            *commands.set_stream(stream, pd=_DOMAIN, crc=True),
            *commands.open_queue(stream, 0),
            *commands.post(
                stream, 0, 1, address=buffer, length=_BUFFER_OCTETS, cookie=_COOKIE + stream,
                slot=stream,
            ),
        )  # fmt: skip
    if config.sctp:
        stream = _LLPS["SCTP"][0]
        (move,) = insert({}, load.KEY, config.associations)
        steps["ASSOCIATION"] = commands.set_association(move, first=stream, count=1)
        for function in (Function.FORGET, Function.INITIATE):
            steps[function.name] = commands.tell_session(stream, function, load.TSN - 1)
    return steps


def _lines(steps: Sequence[Write | Wait]) -> Iterator[str]:
    """Yields the lines of Verilog that carry a command out."""
    for step in steps:
        if isinstance(step, Write):
            yield f"write_register({step.register}, 32'h{step.value:08x});\n"
        else:
            yield f"read_register({step.register});\n"
            yield (
                f"while ((value & 32'h{step.mask:08x}) != 32'h{step.value:08x})"
                f" read_register({step.register});\n"
            )


def _packets(config: RnicConfig) -> Iterator[tuple[str, bytes]]:
    """Yields the input packets by name: FPDUs for MPA, Ethernet frames for SCTP."""
    names = "WRITE_1", "WRITE_2", "SEND"
    if config.mpa:
        sender = MpaSender()
        for name, segment in zip(names, _segments("MPA"), strict=True):
            yield f"MPA_{name}", sender.send(segment)
    if config.sctp:
        accept = struct.pack(">H", Function.ACCEPT)
        yield "SCTP_ACCEPT", load.frame((load.chunk(0, Ppid.CONTROL, accept),)).octets
        for ssn, (name, segment) in enumerate(zip(names, _segments("SCTP"), strict=True), 1):
            yield f"SCTP_{name}", load.frame((load.chunk(ssn, Ppid.SEGMENT, segment),)).octets


def _segments(llp: str) -> Iterator[bytes]:
    """Yields the DDP Segments of two Writes and a Send, one segment for each message."""
    _, tag, offsets, _ = _LLPS[llp]
    headers: list[Header] = [
        *(TaggedHeader(_STAG, _REGION_TO + offset, last=True) for offset in offsets),
        UntaggedHeader(0, 1, 0, last=True),
    ]
    for number, (header, length) in enumerate(zip(headers, _LENGTHS, strict=True)):
        yield header.encode() + bytes(tag + number + 7 * k & 255 for k in range(length))
