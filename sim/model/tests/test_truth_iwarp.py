"""The model plays captures of the Linux kernel's iWARP, and must end where the kernel did."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.hdl.spec.ddp import MESSAGE_TOO_LONG, NO_BUFFER, ErrorNumber, ErrorType
from ddp_rnic.sim.capture.capture import Connection, Direction, read_capture
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.events import DdpError, Delivered, Event, LlpError, Placed
from ddp_rnic.sim.model.header import Header, TaggedHeader, UntaggedHeader
from ddp_rnic.sim.model.memory import Access, Memory, Region
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver
from ddp_rnic.sim.model.rdmap import (
    Opcode,
    QueueNumber,
    RdmapSink,
    ReadRequest,
    ReadSink,
    invalidated_stag,
    opcode,
)

PAINT, SINK_PAINT = 0xEE, 0xCC
PD = 7
RIGHTS = {
    "rw": Access.REMOTE_WRITE | Access.REMOTE_READ,
    "wo": Access.REMOTE_WRITE,
    "ro": Access.REMOTE_READ,
    "inv": Access.REMOTE_WRITE | Access.REMOTE_READ,
}
Truth = list[dict[str, Any]]


def load(path: Path) -> Truth:
    return [json.loads(line) for line in path.read_text().splitlines()]


def unpack(path: Path) -> bytes | None:
    return gzip.decompress(path.read_bytes()) if path.exists() else None


@cache
def pattern(k: int, length: int) -> bytes:
    return bytes((131 * k + 7 * i + 13 * (i >> 8) + 29 * (i >> 16)) & 0xFF for i in range(length))


def play(direction: Direction, sink: RdmapSink) -> list[Event]:
    receiver = MpaReceiver(crc=direction.crc, markers=direction.markers)
    events: list[Event] = []
    for chunk in direction.chunks:
        for frame in receiver.receive(chunk.octets):
            if isinstance(frame, LlpError):
                events += sink.fail(frame)
            else:
                events += sink.receive(frame.ulpdu)
    return events


def server_memory(truth: Truth) -> Memory:
    memory = Memory()
    for record in truth:
        if record["ev"] == "region":
            octets = (
                bytearray(pattern(77, record["len"]))
                if record["name"] == "ro"
                else bytearray([PAINT]) * record["len"]
            )
            memory.register(
                Region(
                    stag=record["stag"],
                    to=record["base"],
                    length=record["len"],
                    access=RIGHTS[record["name"]],
                    pd=PD,
                ),
                octets,
            )
    return memory


def post_receives(sink: RdmapSink, server: Truth, client: Truth) -> None:
    """Posts as many receives as the server reaped, of the length that the truth files imply."""
    completions = [r for r in server if r["ev"] == "wc" and r["wr"] >= 1000]
    too_long = any(r["status_s"] == "local length error" for r in completions)
    sent = [r["len"] for r in client if r["ev"] == "post" and r["op"].startswith("send")]
    length = max(sent, default=1) - 1 if too_long else 1 << 20
    sink.post(QueueNumber.SEND, length, len(completions))


def both(connection: Connection) -> tuple[Direction, Direction]:
    to_server, to_client = connection.directions
    assert to_server.destination == connection.responder
    return to_server, to_client


def load_all(path: Path) -> tuple[str, Truth, Truth, Connection]:
    name = path.name.removesuffix(".server.jsonl")
    capture = read_capture(path.parent.parent / f"{name}.pcap")
    assert len(capture.connections) == 1
    client = path.with_name(f"{name}.client.jsonl")
    return name, load(path), load(client), capture.connections[0]


def test_regions_and_received_messages_are_the_kernels(iwarp_truth: Path) -> None:
    name, server, client, connection = load_all(iwarp_truth)
    memory = server_memory(server)
    painted = {region.stag: memory.octets(region.stag) for region in memory}
    sink = RdmapSink(memory, pd=PD)
    post_receives(sink, server, client)
    events = play(both(connection)[0], sink)

    for record in server:
        if record["ev"] == "region":
            expected = unpack(iwarp_truth.with_name(f"{name}.server.mem_{record['name']}.bin.gz"))
            got = memory.octets(record["stag"])
            expected = painted[record["stag"]] if expected is None else expected
            different = next((i for i in range(len(expected)) if expected[i] != got[i]), None)
            assert got == expected, f"{record['name']} differs at octet {different}"

    sends = [
        e
        for e in events
        if isinstance(e, Delivered)
        and e.message is not None
        and opcode(e.header) not in (Opcode.READ_REQUEST, Opcode.TERMINATE)
    ]
    receives = [record for record in server if record["ev"] == "recv"]
    assert [e.length for e in sends] == [record["len"] for record in receives]
    octets = unpack(iwarp_truth.with_name(f"{name}.server.recv.bin.gz")) or b""
    assert b"".join(e.message or b"" for e in sends) == octets
    posted = [record["inv"] for record in client if record["ev"] == "post" and record["inv"]]
    assert [stag for e in sends if (stag := invalidated_stag(e.header)) is not None] == posted


def test_read_sinks_are_the_kernels(iwarp_truth: Path) -> None:
    name, _, client, connection = load_all(iwarp_truth)
    (record,) = [record for record in client if record["ev"] == "sink"]
    memory = Memory()
    memory.register(
        Region(stag=record["rkey"], to=record["base"], length=record["len"], pd=PD), fill=SINK_PAINT
    )
    sink = RdmapSink(memory, pd=PD)
    events = play(both(connection)[1], sink)
    assert not [e for e in events if isinstance(e, DdpError | LlpError)]
    expected = unpack(iwarp_truth.with_name(f"{name}.client.sink.bin.gz"))
    got = memory.octets(record["rkey"])
    assert got == (bytes([SINK_PAINT]) * record["len"] if expected is None else expected)


def test_read_responses_bring_what_the_requests_name(iwarp_truth: Path) -> None:
    """The answer to a request writes the request's sink, with the octets of its source."""
    _, server, client, connection = load_all(iwarp_truth)
    memory = server_memory(server)
    sink = RdmapSink(memory, pd=PD)
    post_receives(sink, server, client)
    to_server, to_client = both(connection)
    requests = [
        ReadRequest.decode(e.message)
        for e in play(to_server, sink)
        if isinstance(e, Delivered)
        and e.message
        and e.header.tagged is False
        and opcode(e.header) == Opcode.READ_REQUEST
    ]
    posted = [r for r in client if r["ev"] == "post" and r["op"] == "read"]
    assert [(r.sink_to, r.length, r.source_stag, r.source_to) for r in requests] == [
        (r["local_va"], r["len"], r["rkey"], r["raddr"]) for r in posted
    ]
    (record,) = [record for record in client if record["ev"] == "sink"]
    expected = bytearray([SINK_PAINT]) * record["len"]
    successes = {r["wr"] for r in client if r["ev"] == "wc" and r["status_s"] == "success"}
    for request, post in zip(requests, posted, strict=True):
        source = request.source(memory, stream=0, pd=PD)
        if post["wr"] in successes and source is not None:
            start = request.sink_to - record["base"]
            expected[start : start + request.length] = source
    sinks = Memory()
    sinks.register(
        Region(stag=record["rkey"], to=record["base"], length=record["len"], pd=PD), fill=SINK_PAINT
    )
    placed = sum(
        e.length
        for e in play(to_client, RdmapSink(sinks, pd=PD))
        if isinstance(e, Placed) and e.header.tagged
    )
    # A peer that answers a request which the model would refuse (siw and err_rdaccess) is left out
    # here.
    if all(request.source(memory, stream=0, pd=PD) is not None for request in requests):
        assert sinks.octets(record["rkey"]) == expected
        assert placed == sum(request.length for request in requests)


#: A capture whose markers are not where RFC 5044 has them.
NOT_CONFORMANT = "read_write_long_run_mrkr"


def request_of(octets: bytes, path: Path) -> ReadRequest:
    """Decodes a Read Request; in the captures of one stack, its fields have the host's order."""
    if path.parent.name == "iwarp_rdma":
        return ReadRequest(*struct.unpack("<IQIIQ", octets))
    return ReadRequest.decode(octets)


def messages_of(direction: Direction) -> list[tuple[Header, bytes]]:
    """Returns the DDP Segments of a direction."""
    receiver = MpaReceiver(crc=direction.crc, markers=direction.markers)
    frames = [frame for chunk in direction.chunks for frame in receiver.receive(chunk.octets)]
    return [
        decode_segment(frame.ulpdu) for frame in frames if isinstance(frame, Fpdu) and frame.ulpdu
    ]


def test_every_response_is_the_one_that_was_asked_for(mpa_capture: Path) -> None:
    """Responses of real stacks pass the comparison with their requests, segment by segment. They
    would not if the first request had asked for anything else.
    """
    if mpa_capture.name == NOT_CONFORMANT:
        pytest.skip("its FPDUs cannot be found")
    for connection in read_capture(mpa_capture).connections:
        one, other = map(messages_of, connection.directions)
        for asks, answers in ((one, other), (other, one)):
            requests = [
                request_of(octets, mpa_capture)
                for header, octets in asks
                if isinstance(header, UntaggedHeader) and header.qn == QueueNumber.READ_REQUEST
            ]
            responses = [
                (header, len(octets))
                for header, octets in answers
                if isinstance(header, TaggedHeader) and opcode(header) == Opcode.READ_RESPONSE
            ]
            assert compared(requests, responses) is None
            if not responses:
                continue
            first, *others = requests
            for change in ({"sink_stag": first.sink_stag ^ 1}, {"sink_to": first.sink_to ^ 256}):
                if first.length:
                    assert compared([replace(first, **change), *others], responses) is not None
            for length in {max(first.length - 1, 0), first.length + 1} - {first.length}:
                assert compared([replace(first, length=length), *others], responses) is not None
            ended = sum(header.last for header, _ in responses)
            assert compared(requests[: ended - 1], responses) is not None


def compared(
    requests: list[ReadRequest], responses: list[tuple[TaggedHeader, int]]
) -> ErrorNumber | None:
    """Returns the first error of segments of responses to requests, or None."""
    sink = ReadSink(Memory())
    sink.bounded = True
    for request in requests:
        sink.expect(request)
    errors = (sink.refuse(header, length) for header, length in responses)
    return next((error for error in errors if error is not None), None)


#: Error numbers that siw's Terminate names differently from RFC 5041 section 7.2.
SIW_SAYS = {MESSAGE_TOO_LONG: NO_BUFFER}


def terminate(direction: Direction) -> ErrorNumber | None:
    """Returns the DDP error of the Terminate that this direction carried, or None."""
    for event in play(direction, RdmapSink(Memory())):
        if isinstance(event, Delivered) and opcode(event.header) == Opcode.TERMINATE:
            assert event.message is not None
            # siw on little-endian hosts swaps the nibbles: RFC 5040 section 4.8 puts the layer
            # first.
            kind, layer = event.message[0] >> 4, event.message[0] & 0xF
            if layer == 1:
                return ErrorNumber(ErrorType(kind), event.message[1])
        elif isinstance(event, DdpError):
            return None  # tagged answers, for which no sink is registered here
    return None


def test_errors_are_those_of_the_kernels_terminate(iwarp_truth: Path) -> None:
    _, server, client, connection = load_all(iwarp_truth)
    to_server, to_client = both(connection)
    sink = RdmapSink(server_memory(server), pd=PD)
    post_receives(sink, server, client)
    errors = [e for e in play(to_server, sink) if isinstance(e, DdpError | LlpError)]
    answer = terminate(to_client)
    assert len(errors) == (answer is not None)
    if errors:
        assert SIW_SAYS.get(errors[0].number, errors[0].number) == answer
