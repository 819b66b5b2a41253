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
from typing import Any, NamedTuple

from ..hdl.spec import commands, regs
from ..hdl.spec.commands import Wait, Write
from ..hdl.spec.completion import FIELDS, OCTETS, Kind
from ..hdl.spec.config import RnicConfig
from ..hdl.spec.net import insert
from ..hdl.spec.sctp import Diversion, Function
from ..hdl.spec.send import ENTRY, READS, Flag, Message, Piece, Record
from ..hdl.spec.send import Kind as SendKind
from ..hdl.spec.stag import Access
from ..sim.engines.engine import Ring
from ..sim.model.ddp import DataSource, decode_segment
from ..sim.model.header import Header, TaggedHeader, UntaggedHeader
from ..sim.model.memory import Memory, Region
from ..sim.model.mpa import MpaSender
from ..sim.model.sctp import DataChunk, Packet, Ppid
from ..sim.model.send import SendQueue
from ..sim.replay import load
from ..sim.replay.paths import example_path, frame_of
from .interface import ports
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
LLPS = {
    "MPA": (1, 0x20, (1, 0xDD), _MEMORY + 0x2005),
    "SCTP": (0, 0x90, (0x300, 0x4F3), _MEMORY + 0x2207),
}
# A device that sends reads this region: from an odd address, across a page's end, with Tagged
# Offsets that carry into the upper half.
_SOURCE, _SOURCE_OCTETS, _SOURCE_TAG = _MEMORY + 0x2D35, 0x300, 0x40
_SOURCE_STAG, _SOURCE_TO = 0x00000722, 0x7000_0000_FFFF_FF81
_MULPDU = 270


class _Sender(NamedTuple):
    """A stream sends this message, with these settings of its sending half.

    ``ring`` is the address of the ring of work requests, ``sequence`` the LLP sequence number of
    the first octet or the first TSN, and ``msn`` that of the stream's queue 0.
    """

    stream: int
    message: Message
    ring: int
    sequence: int
    markers: bool
    msn: int = 1

    def settings(self, config: RnicConfig) -> tuple[Write, ...]:
        """Returns the writes that open the sending half: over MPA, or in a device without MPA over
        SCTP, on an association of its own.
        """
        if config.mpa:
            return commands.set_sending(
                self.stream, sequence=self.sequence, crc=True, markers=self.markers
            )
        number = SENDERS.index(self)
        return (
            *commands.set_path(number, example_path(number), tsn=self.sequence),
            *commands.set_sending_sctp(self.stream, association=number, sid=self.stream),
        )

    def packets(self, config: RnicConfig) -> Iterator[tuple[int, bytes, Record]]:
        """Yields the sequence number and the octets of each FPDU that the model sends, or the TSN
        and the octets of each frame; and its record.
        """
        memory, source = Memory(), DataSource(_MULPDU)
        memory.register(
            Region(stag=_SOURCE_STAG, to=_SOURCE_TO, length=_SOURCE_OCTETS, pd=_DOMAIN),
            bytearray(_source()),
        )
        source.set_msn(0, self.msn)
        queue = SendQueue(source, memory, stream=self.stream, pd=_DOMAIN)
        queue.post(self.message)
        mpa, message = MpaSender(markers=self.markers), self.message
        entries, offset, chunks = len(message.encode()) // ENTRY, 0, 0
        while (segment := queue.send()) is not None:
            header, payload = decode_segment(segment)
            record = Record(
                entry=0, offset=offset, entries=entries, response=0, ends=int(header.last),
                signaled=1, repeat=0,
            )  # fmt: skip
            offset += len(payload)
            if config.mpa:
                sequence = self.sequence + mpa.position & 0xFFFFFFFF
                yield sequence, mpa.send(segment), record
            else:
                yield self.sequence + chunks & 0xFFFFFFFF, self._frame(chunks, segment), record
            chunks += 1

    def _frame(self, ssn: int, segment: bytes) -> bytes:
        """Returns the frame with a segment."""
        path = example_path(SENDERS.index(self))
        payload = ssn.to_bytes(2, "big") + segment
        chunk = DataChunk(self.sequence + ssn & 0xFFFFFFFF, self.stream, Ppid.SEGMENT, payload)
        packet = Packet(path.source_port, path.destination_port, path.tag, (chunk,))
        return frame_of(path.headers, packet.encode())


#: A Write of several segments on a stream that also receives, and a Send on one that only sends.
#: Sequence numbers wrap.
SENDERS = (
    _Sender(
        LLPS["MPA"][0],
        Message(
            SendKind.TAGGED, Flag.SIGNALED, stag=0x00C0FFEE, to=0x1_FFFF_FF0D,
            pieces=(
                Piece(_SOURCE_STAG, 333, _SOURCE_TO + 1),
                Piece(_SOURCE_STAG, 401, _SOURCE_TO + 0x15B),
            ),
        ),
        _MEMORY + 0x3C00, 0xFFFFFE70, True,
    ),
    _Sender(
        3,
        Message(
            SendKind.UNTAGGED, Flag.SIGNALED | Flag.INLINE, octets=bytes(range(0x80, 0xCB)),
            rsvdulp=0x43_0000_0000,
        ),
        _MEMORY + 0x3D00, 0x00001000, False, 0xFFFFFFFF,
    ),
)  # fmt: skip


def receiving(config: RnicConfig) -> list[str]:
    """Returns the LLPs over which the device receives."""
    there = {"MPA": config.mpa, "SCTP": config.sctp}
    return [llp for llp in LLPS if config.receive and there[llp]]


def text(config: RnicConfig) -> str:
    """Returns ``tb_rnic.v``, which belongs beside ``rnic.v``."""
    steps = commands_of(config)
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
    packets = dict(packets_of(config))
    yield f"localparam WIDTH = {config.width};"
    widths = {port.name: port.width for port in ports(config)}
    yield f"localparam ID_BITS = {widths['m_axi_arid' if config.transmit else 'm_axi_awid']};"
    for part, there in (
        ("MPA", config.mpa),
        ("SCTP", config.sctp),
        ("RECEIVE", config.receive),
        ("TRANSMIT", config.transmit),
    ):
        if there:
            yield f"`define RNIC_{part}"
    yield "// Addresses of registers, and values that they are set to."
    for register in registers(config):
        # The text looks at these only in a device that sends.
        sends = register.name in ("CAP_SENDS", "DOORBELLS_IGNORED")
        if register.name in words and (config.transmit or not sends):
            yield f"localparam [16:0] {register.name} = 17'h{register.address:05x};"
    for name, value in _values(config).items():
        yield f"localparam [31:0] {name} = 32'h{value:08x};"
    yield "// An entry of a completion queue: its octets, and the lowest bit of each field."
    yield f"localparam ENTRY_OCTETS = {OCTETS};"
    for field in FIELDS:
        # The text compares these fields alone only of completions that other devices never write.
        others = {
            "kind": config.sctp or config.transmit, "status": config.owned,
            **dict.fromkeys(("tagged", "length", "cookie"), config.receive),
        }  # fmt: skip
        needed = others.get(field.name, True)
        if (name := f"ENTRY_{field.name.upper()}") in words and needed:
            yield f"localparam {name} = {8 * field.octet + field.bit};"
    for kind in (Kind.CHUNK, Kind.CONTROL) * config.owned + (Kind.SENT,) * config.transmit:
        yield f"localparam [3:0] KIND_{kind.name} = 4'd{kind:d};"
    yield "// Host memory, and its rings of completions."
    yield f"localparam [63:0] MEMORY = 64'h{used(config, _MEMORY):016x};"
    yield f"localparam [63:0] RING = 64'h{used(config, _RING):016x};"
    yield f"localparam MEMORY_OCTETS = {_MEMORY_OCTETS};"
    ring = ring_of(config)
    yield f"localparam RING_SIZE = {ring.size}, RINGS_OCTETS = {len(ring.octets)};"
    if config.receive:
        yield from _received(config, packets)
    if config.transmit:
        yield from _sent(config)


def _received(config: RnicConfig, packets: dict[str, bytes]) -> Iterator[str]:
    """Yields the constants for a device that receives."""
    yield "// The region that the STag names, and the messages."
    yield f"localparam [63:0] REGION = 64'h{used(config, _REGION):016x};"
    yield f"localparam [63:0] REGION_TO = 64'h{_REGION_TO:016x};"
    for name, length in zip(("FIRST", "SECOND", "SEND"), _LENGTHS, strict=True):
        yield f"localparam {name}_OCTETS = {length};"
    for llp in receiving(config):
        stream, tag, offsets, buffer = LLPS[llp]
        yield f"localparam [15:0] {llp}_STREAM = 16'd{stream};"
        yield f"localparam [7:0] {llp}_TAG = 8'h{tag:02x};"
        for name, address in (
            ("FIRST", _REGION + offsets[0]),
            ("SECOND", _REGION + offsets[1]),
            ("BUFFER", buffer),
        ):
            yield f"localparam [63:0] {llp}_{name} = 64'h{used(config, address):016x};"
    yield "// Packets, their first octet highest."
    longest = max(map(len, packets.values()))
    yield f"localparam LONGEST = {longest};"
    for name, octets in packets.items():
        yield f"localparam {name}_OCTETS = {len(octets)};"
        digits = octets.ljust(longest, b"\0").hex()
        yield f"localparam [8*LONGEST-1:0] {name} ="
        yield f"  {8 * longest}'h{digits};"


def _sent(config: RnicConfig) -> Iterator[str]:
    """Yields the constants for a device that sends."""
    yield "// The region that the device reads, the work requests of two streams, and their FPDUs."
    yield f"localparam [63:0] SOURCE = 64'h{used(config, _SOURCE):016x};"
    yield f"localparam SOURCE_OCTETS = {_SOURCE_OCTETS};"
    yield f"localparam [7:0] SOURCE_TAG = 8'h{_SOURCE_TAG:02x};"
    work = [sender.message.encode() for sender in SENDERS]
    longest = max(map(len, work))
    yield f"localparam LONGEST_RING = {longest};"
    for number, (sender, entries) in enumerate(zip(SENDERS, work, strict=True), 1):
        name = f"SENDER_{number}"
        yield f"localparam [15:0] {name} = 16'd{sender.stream};"
        yield f"localparam [63:0] {name}_RING = 64'h{used(config, sender.ring):016x};"
        yield f"localparam {name}_ENTRIES = {len(entries) // ENTRY};"
        yield f"localparam [8*LONGEST_RING-1:0] {name}_WORK ="
        yield f"  {8 * longest}'h{entries.ljust(longest, bytes(1)).hex()};"
    fpdus = [(sender.stream, *each) for sender in SENDERS for each in sender.packets(config)]
    text = b"".join(octets for _, _, octets, _ in fpdus)
    at, ends = len(text), []
    for _, _, octets, _ in fpdus:
        ends.append(at - 1)
        at -= len(octets)
    yield f"localparam FPDUS = {len(fpdus)};"
    yield "// Of each FPDU or frame, the first one lowest; FPDU_ENDS: its first octet in TEXT."
    for name, bits, values in (
        ("STREAMS", 16, [stream for stream, *_ in fpdus]),
        ("TUSERS", 96, [record.number << 32 | sequence for _, sequence, _, record in fpdus]),
        ("OCTETS", 16, [len(octets) for _, _, octets, _ in fpdus]),
        ("ENDS", 16, ends),
    ):
        digits = "".join(f"{value:0{bits // 4}x}" for value in reversed(values))
        yield f"localparam [{bits}*FPDUS-1:0] FPDU_{name} = {bits * len(values)}'h{digits};"
    yield f"localparam [8*{len(text)}-1:0] FPDU_TEXT ="
    yield f"  {8 * len(text)}'h{text.hex()};"


def ring_of(config: RnicConfig) -> Ring:
    """Returns the rings of the completion queues: with SCTP, a second one for SCTP's owner."""
    owner = config.completion_queues * config.owned
    size = config.owner_size if config.owned else 4
    return Ring(used(config, _RING), size, owner)


def _values(config: RnicConfig) -> dict[str, int]:
    """Returns the 32-bit values to which registers are set, and with which they are compared."""
    values = {
        "ID_VALUE": regs.ID,
        **({"STAG": _STAG, "COOKIE_VALUE": _COOKIE} if config.receive else {}),
        "STATUS_EVENT": regs.pack("STATUS", event=1),
        "STATUS_IDLE": regs.pack("STATUS", idle=1),
        "ARM": regs.pack("CQ_DOORBELL", arm=1),
        "OWNER": config.completion_queues,
    }
    if config.transmit:
        values["SENDS"] = regs.pack(
            "CAP_SENDS", messages=1, responses=config.responder, chunks=config.sctp,
            reads=READS * config.reader,
        )  # fmt: skip
    if config.owned:
        values |= {
            "FUNCTION_ACCEPT": Function.ACCEPT,
            "ANSWER_TAKEN": regs.pack("SESSION_ANSWER", taken=1),
            "REASON_CONTROL": Diversion.CONTROL,
        }
    return values


def bring_up(config: RnicConfig) -> Iterator[tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    """Yields the calls that bring a device up: purpose, function of ``commands``, arguments."""
    ring = ring_of(config)
    for at, queue in enumerate(ring.queues):
        address = ring.address + at * ring.entries * OCTETS
        whose = "SCTP's owner" if queue else "messages"
        yield f"a completion queue for {whose}", "set_cq", (address, ring.size), {"queue": queue}
    region = {"pd": _DOMAIN, "to": _REGION_TO, "length": _REGION_OCTETS, "address": _REGION}
    if config.receive:
        what = "a region that the peer may write to"
        yield what, "set_stag", (_STAG, Access.REMOTE_WRITE), region
    for llp in receiving(config):
        stream, _, _, buffer = LLPS[llp]
        if llp == "SCTP":
            (move,) = insert({}, load.KEY, config.associations)
            association = {"first": stream, "count": 1}
            yield "the association that carries the stream", "set_association", (move,), association
        yield f"a stream over {llp}", "set_stream", (stream,), {"pd": _DOMAIN, "crc": True}
        yield "its queue of Sends", "open_queue", (stream, 0), {}
        posted = {"address": buffer, "length": _BUFFER_OCTETS, "cookie": _COOKIE, "slot": stream}
        yield "a buffer for the first Send", "post", (stream, 0, 1), posted
        if llp == "SCTP":
            for function in (Function.FORGET, Function.INITIATE):
                yield "its session", "tell_session", (stream, function, load.TSN - 1), {}
    if config.transmit:
        sender = SENDERS[0]
        if "MPA" not in receiving(config):
            options = {"pd": _DOMAIN, **({} if config.receive else {"cq": None})}
            yield "a stream that sends", "set_stream", (sender.stream,), options
        yield "the segments that a stream sends", "set_mulpdu", (sender.stream, _MULPDU), {}
        if config.mpa:
            options = {"sequence": sender.sequence, "crc": True}
            yield "its sending half", "set_sending", (sender.stream,), options
        else:
            path = example_path(0)
            yield "the packets of its association", "set_path", (0, path), {"tsn": sender.sequence}
            options = {"association": 0, "sid": sender.stream}
            yield "its sending half", "set_sending_sctp", (sender.stream,), options
        yield "its ring of work requests", "set_send_ring", (sender.stream, sender.ring, 2), {}
        yield "the doorbell, after work requests", "ring_send", (sender.stream, 1), {}


def commands_of(config: RnicConfig) -> dict[str, Sequence[Write | Wait]]:
    """Returns the steps of the commands that the testbench gives, by their names in its text."""
    steps: dict[str, Sequence[Write | Wait]] = {
        "RING": ring_of(config).command(interrupts=True),
        "REGION": commands.set_stag(
            _STAG, Access.REMOTE_WRITE, pd=_DOMAIN, to=_REGION_TO, length=_REGION_OCTETS,
            address=_REGION,
        ),
    }  # fmt: skip
    for llp in receiving(config):
        stream, _, _, buffer = LLPS[llp]
        steps[f"{llp}_STREAM"] = (
            *commands.set_stream(stream, pd=_DOMAIN, crc=True),
            *commands.open_queue(stream, 0),
            *commands.post(
                stream, 0, 1, address=buffer, length=_BUFFER_OCTETS, cookie=_COOKIE + stream,
                slot=stream,
            ),
        )  # fmt: skip
    if config.owned:
        stream = LLPS["SCTP"][0]
        (move,) = insert({}, load.KEY, config.associations)
        steps["ASSOCIATION"] = commands.set_association(move, first=stream, count=1)
        for function in (Function.FORGET, Function.INITIATE):
            steps[function.name] = commands.tell_session(stream, function, load.TSN - 1)
    if config.transmit:
        steps["SOURCE"] = commands.set_stag(
            _SOURCE_STAG, Access.LOCAL_READ, pd=_DOMAIN, to=_SOURCE_TO, length=_SOURCE_OCTETS,
            address=_SOURCE,
        )  # fmt: skip
        # Each sender has a doorbell page of its own, with its number.
        for number, sender in enumerate(SENDERS, 1):
            stream = sender.stream
            steps[f"SENDER_{number}"] = (
                *(
                    commands.set_stream(
                        stream, pd=_DOMAIN, crc=True, cq=0 if config.receive else None
                    )
                    if number > 1 or "MPA" not in receiving(config)
                    else ()
                ),
                *commands.set_mulpdu(stream, _MULPDU),
                *sender.settings(config),
                *commands.set_sent_msn(stream, 0, sender.msn),
                *commands.set_send_ring(stream, sender.ring, 2, page=number),
            )
        # The first one is ignored: its stream is not of this page.
        steps["DOORBELLS"] = [
            *commands.ring_send(SENDERS[0].stream, 1, page=regs.PAGES),
            *(
                step
                for page, sender in enumerate(SENDERS, 1)
                for step in commands.ring_send(
                    sender.stream, len(sender.message.encode()) // ENTRY, page=page
                )
            ),
        ]
    return steps


def _lines(steps: Sequence[Write | Wait]) -> Iterator[str]:
    """Yields the lines of Verilog that carry a command out."""
    for step in steps:
        if isinstance(step, Write):
            page = f"17'h{step.page * regs.PAGE_SIZE:05x} + " if step.page else ""
            yield f"write_register({page}{step.register}, 32'h{step.value:08x});\n"
        else:
            yield f"read_register({step.register});\n"
            yield (
                f"while ((value & 32'h{step.mask:08x}) != 32'h{step.value:08x})"
                f" read_register({step.register});\n"
            )


def packets_of(config: RnicConfig) -> Iterator[tuple[str, bytes]]:
    """Yields the input packets by name: FPDUs for MPA, Ethernet frames for SCTP."""
    names, llps = ("WRITE_1", "WRITE_2", "SEND"), receiving(config)
    if "MPA" in llps:
        sender = MpaSender()
        for name, segment in zip(names, _segments("MPA"), strict=True):
            yield f"MPA_{name}", sender.send(segment)
    if "SCTP" in llps:
        accept = struct.pack(">H", Function.ACCEPT)
        yield "SCTP_ACCEPT", load.frame((load.chunk(0, Ppid.CONTROL, accept),)).octets
        for ssn, (name, segment) in enumerate(zip(names, _segments("SCTP"), strict=True), 1):
            yield f"SCTP_{name}", load.frame((load.chunk(ssn, Ppid.SEGMENT, segment),)).octets


def writes_of(llp: str, payload: int, count: int) -> Iterator[bytes]:
    """Yields further input packets: segments of this many octets, which go to one place."""
    offset = LLPS[llp][2][0]
    for number in range(1, count + 1):
        header = TaggedHeader(_STAG, _REGION_TO + offset, last=llp == "SCTP")
        segment = header.encode() + bytes(payload)
        if llp == "MPA":
            yield MpaSender().send(segment)
        else:
            ssn = len(_LENGTHS) + number
            yield load.frame((load.chunk(ssn, Ppid.SEGMENT, segment),)).octets


def _segments(llp: str) -> Iterator[bytes]:
    """Yields the DDP Segments of two Writes and a Send, one segment for each message."""
    _, tag, offsets, _ = LLPS[llp]
    headers: list[Header] = [
        *(TaggedHeader(_STAG, _REGION_TO + offset, last=True) for offset in offsets),
        UntaggedHeader(0, 1, 0, last=True),
    ]
    for number, (header, length) in enumerate(zip(headers, _LENGTHS, strict=True)):
        yield header.encode() + _octets(tag + number, length)


def memory_of(config: RnicConfig) -> dict[int, bytes]:
    """Returns what a device that sends reads from host memory, by its address."""
    if not config.transmit:
        return {}
    found = {_SOURCE: _source()} | {each.ring: each.message.encode() for each in SENDERS}
    return {used(config, address): octets for address, octets in found.items()}


def used(config: RnicConfig, address: int) -> int:
    """Returns the bits of a host address that the device uses."""
    return address & (1 << config.address) - 1


def _source() -> bytes:
    return _octets(_SOURCE_TAG, _SOURCE_OCTETS)


def _octets(tag: int, length: int) -> bytes:
    """Returns the octets that the testbench's function ``octet`` makes."""
    return bytes(tag + 7 * k & 255 for k in range(length))
