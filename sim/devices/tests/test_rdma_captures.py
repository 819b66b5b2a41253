"""The endpoint replaces one side of the Linux kernel's connections, and must answer alike.

The other side's octets are those of the capture, except for Steering Tags that the endpoint has
issued itself. The device receives alone, and the driver makes all that leaves; or it sends and
answers RDMA Reads, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.model.ddp import decode_segment
from ddp_rnic.sim.model.header import TaggedHeader
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver, MpaSender
from ddp_rnic.sim.model.rdmap import Opcode as Message
from ddp_rnic.sim.model.rdmap import ReadRequest, invalidated_stag, opcode
from ddp_rnic.sim.model.tests.test_truth_iwarp import (
    PAINT,
    SINK_PAINT,
    both,
    load_all,
    pattern,
    unpack,
)
from ddp_rnic.sw_driver import PD, Access, Device, WcStatus
from ddp_rnic.sw_driver.cm import Connection
from ddp_rnic.sw_driver.rdmap import CQ, WC, Opcode

CAPTURES = Path(__file__).resolve().parents[3].parent / "shared" / "captures" / "iwarp"
TRUTH = sorted(CAPTURES.glob("*/truth/*.server.jsonl"))
pytestmark = pytest.mark.skipif(
    not TRUTH, reason="needs the captures of real stacks: shared/captures beside the project"
)
DEVICES = {"receives": RnicConfig(), "sends": RnicConfig(transmit=True, responder=True)}
each_capture = pytest.mark.parametrize(
    "path, config",
    [
        pytest.param(
            path,
            config,
            id=f"{path.parts[-3]}-{path.name.split('.')[0]}-{device}",
            marks=[pytest.mark.long] * (device == "receives"),
        )
        for path in TRUTH
        for device, config in DEVICES.items()
    ],
)
#: Octets of the longest DDP Segment that siw sends at an MTU of 1500.
MULPDU = 1442
ACCESS = {
    "rw": Access.REMOTE_WRITE | Access.REMOTE_READ,
    "wo": Access.REMOTE_WRITE,
    "ro": Access.REMOTE_READ,
    "inv": Access.REMOTE_WRITE | Access.REMOTE_READ,
}
_OPCODES = {
    "write": Opcode.RDMA_WRITE,
    "read": Opcode.RDMA_READ,
    "send": Opcode.SEND,
    "send_inv": Opcode.SEND_WITH_INV,
}
STags = dict[int, int]


def segments(octets: bytes, *, crc: bool) -> list[bytes]:
    frames = MpaReceiver(crc=crc).receive(octets)
    assert all(isinstance(frame, Fpdu) for frame in frames)
    return [frame.ulpdu for frame in frames]  # type: ignore[union-attr]


def renamed(segment: bytes, stags: STags) -> bytes:
    """Returns the same segment with other STags."""
    header, payload = decode_segment(segment)

    def other(stag: int) -> bytes:
        return stags.get(stag, stag).to_bytes(4, "big")

    if isinstance(header, TaggedHeader):
        return segment[:2] + other(header.stag) + segment[6:]
    if (stag := invalidated_stag(header)) is not None:
        return segment[:2] + other(stag) + segment[6:]
    if opcode(header) == Message.READ_REQUEST:
        request = ReadRequest.decode(payload)
        return segment[: header.size] + payload[:16] + other(request.source_stag) + payload[20:]
    return segment


def read_terminate(segment: bytes) -> tuple[int, int, int, int, bytes]:
    """Returns layer, type, code, the flags, and the headers of a Terminate in RFC 5040's format."""
    _, payload = decode_segment(segment)
    return (payload[0] >> 4, payload[0] & 15, payload[1], payload[2] >> 5, payload[6:])


def read_siw_terminate(segment: bytes) -> tuple[int, int, int, int, bytes]:
    """Returns the same for siw's format on little-endian hosts: nibbles swapped, flags reversed."""
    _, payload = decode_segment(segment)
    there = int(f"{payload[2] & 7:03b}"[::-1], 2)
    headers = payload[6:]
    if there & 1:
        # In a Read Request's header the Read's length stands in the place of the MSN.
        assert headers[10:14] == headers[30:34]
        headers = headers[:10] + (1).to_bytes(4, "big") + headers[14:]
    return (payload[0] & 15, payload[0] >> 4, payload[1], there, headers)


def is_terminate(segment: bytes) -> bool:
    return opcode(decode_segment(segment)[0]) == Message.TERMINATE


@each_capture
def test_the_server_answers_as_the_kernel_did(path: Path, config: RnicConfig) -> None:
    """MPA Reply, Read Responses and Terminates equal the kernel's octet by octet."""
    name, server, client, captured = load_all(path)
    to_server, to_client = both(captured)
    regions, memory, stags = {}, {}, {}
    with SimTransport(config) as sim, Device(sim).open() as context, PD(context) as pd:
        cq = CQ(context)
        for record in server:
            if record["ev"] == "region":
                called = record["name"]
                fill = pattern(77, record["len"]) if called == "ro" else None
                memory[called] = bytearray(fill or [PAINT] * record["len"])
                region = pd.register(memory[called], ACCESS[called], to=record["base"])
                regions[called], stags[record["stag"]] = region, region.stag
        connection = Connection(
            sim.send, pd, cq, crc=captured.reply.crc, mulpdu=MULPDU
        )  # fmt: skip
        connection.receive(captured.request.encode())
        assert connection.request is not None
        assert connection.request.encode() == captured.request.encode()
        qp = connection.accept(
            b"".join(
                record.to_bytes(4, "big")
                for record in (
                    stags.get(word, word)
                    for (word,) in struct.iter_unpack(">I", captured.reply.private_data)
                )
            )
        )
        reply = connection.data_to_send()
        assert with_stags(reply, stags) == captured.reply.encode()

        buffers = receives(server, client)
        waiting = iter(buffers)
        sender = MpaSender(crc=to_server.crc)
        answers: bytes = b""
        taken: list[WC] = []
        for segment in segments(to_server.octets, crc=to_server.crc):
            while qp.stream.outstanding(0) < 64 and (buffer := next(waiting, None)) is not None:
                qp.post_recv(buffer, wr_id=buffer)
            connection.receive(sender.send(renamed(segment, stags)))
            for octets, completions in settling(sim, cq, connection):
                answers += octets
                taken += completions
            if connection.closed:
                break

        got = segments(answers, crc=to_client.crc)
        wanted = segments(to_client.octets, crc=to_client.crc)
        if name == "err_rdaccess":
            # siw answers although the region has no right to be read. RFC 5040 section 8.1.1 and
            # 4.8: Remote Protection Error, access rights violation.
            (terminate,) = got
            assert read_terminate(terminate)[:4] == (0, 1, 2, 7)
        else:
            theirs = [s for s in wanted if is_terminate(s)]
            ours = [s for s in got if is_terminate(s)]
            assert [s for s in got if s not in ours] == [s for s in wanted if s not in theirs]
            assert len(ours) == len(theirs) <= 1
            for one, other in zip(ours, theirs, strict=True):
                said = list(read_siw_terminate(other))
                if name == "err_toolong":
                    said[2] = 5  # RFC 5041 section 7.2: message too long for available buffer
                headers = with_stags(one, stags)
                assert list(read_terminate(headers)) == said
                assert one[:18] == other[:18]
        received = [wc for wc in taken if wc.opcode is Opcode.RECV and good(wc)]
        records = [record for record in server if record["ev"] == "recv"]
        assert [wc.byte_len for wc in received] == [record["len"] for record in records]
        delivered = b"".join(bytes(wc.wr_id[: wc.byte_len]) for wc in received)
        assert delivered == (unpack(path.with_name(f"{name}.server.recv.bin.gz")) or b"")
        for wc in received:
            assert (wc.invalidated is not None) == (name == "sendinv")
    for called, final in memory.items():
        painted = pattern(77, len(final)) if called == "ro" else bytes([PAINT]) * len(final)
        expected = unpack(path.with_name(f"{name}.server.mem_{called}.bin.gz"))
        assert final == (painted if expected is None else expected), called


def settling(sim: SimTransport, cq: CQ, connection: Connection) -> Iterator[tuple[bytes, list[WC]]]:
    """Runs the device until nothing more comes; yields the octets to send and the completions."""
    quiet = 0
    while quiet < 3:
        sim.run(500)
        taken, octets = cq.poll(1000), connection.data_to_send()
        yield octets, taken
        quiet = 0 if octets or taken else quiet + 1


def good(wc: WC) -> bool:
    return wc.status is WcStatus.SUCCESS


def with_stags(octets: bytes, stags: STags) -> bytes:
    """Returns the endpoint's segments with the kernel's STags."""
    for theirs, ours in stags.items():
        octets = octets.replace(ours.to_bytes(4, "big"), theirs.to_bytes(4, "big"))
    return octets


def receives(server: list[dict[str, Any]], client: list[dict[str, Any]]) -> list[bytearray | None]:
    """Posts as many receives as the server reaped, of the length that the truth files imply."""
    completions = [r for r in server if r["ev"] == "wc" and r["wr"] >= 1000]
    too_long = any(r["status_s"] == "local length error" for r in completions)
    sent = [r["len"] for r in client if r["ev"] == "post" and r["op"].startswith("send")]
    length = max(sent, default=1) - too_long
    return [bytearray(max(length, 1)) for _ in completions]


def normal_reads(sent: Iterable[bytes]) -> Iterator[bytes]:
    """Returns segments without the sink of each Read."""
    for segment in sent:
        header, payload = decode_segment(segment)
        if opcode(header) == Message.READ_REQUEST:
            yield segment[: header.size] + bytes(12) + payload[12:]
        else:
            yield segment


@each_capture
def test_the_client_asks_as_the_kernel_did(path: Path, config: RnicConfig) -> None:
    """MPA Request, Writes, Sends and Read Requests equal the kernel's octet by octet."""
    name, _, client, captured = load_all(path)
    to_server, to_client = both(captured)
    (record,) = [record for record in client if record["ev"] == "sink"]
    sink = bytearray([SINK_PAINT]) * record["len"]
    posts = [record for record in client if record["ev"] == "post"]
    with SimTransport(config) as sim, Device(sim).open() as context, PD(context) as pd:
        cq = CQ(context)
        connection = Connection(sim.send, pd, cq, crc=captured.request.crc, mulpdu=MULPDU)
        connection.connect(captured.request.private_data)
        assert connection.data_to_send() == captured.request.encode()
        connection.receive(captured.reply.encode())
        assert connection.reply is not None
        assert connection.reply.encode() == captured.reply.encode()
        for post in posts:
            start = post["local_off"]
            end = start + post["len"]
            buffer: Any = pattern(1, 1 << 20)[start:end]
            if post["op"] == "read":
                buffer = memoryview(sink)[start:end] if end > start else None
            connection.qp.post_send(
                _OPCODES[post["op"]], buffer, wr_id=post["wr"],
                stag=post["inv"] or (0 if post["op"] == "send" else post["rkey"]),
                to=0 if post["op"].startswith("send") else post["raddr"],
                solicited=bool(post["se"]),
            )  # fmt: skip
        octets: bytes = b""
        taken: list[WC] = []

        def settle() -> None:
            nonlocal octets
            for more, completions in settling(sim, cq, connection):
                octets += more
                taken.extend(completions)

        settle()
        sender = MpaSender(crc=to_client.crc)
        answered = 0
        for segment in segments(to_client.octets, crc=to_client.crc):
            header, payload = decode_segment(segment)
            if isinstance(header, TaggedHeader):
                # The Read's sink has its own STag here.
                reads = [s for s in segments(octets, crc=to_server.crc) if is_read(s)]
                ours = ReadRequest.decode(decode_segment(reads[answered])[1])
                theirs = [r for r in posts if r["op"] == "read"][answered]
                to = header.to - theirs["local_va"] + ours.sink_to
                segment = TaggedHeader(
                    ours.sink_stag, to, header.last, header.rsvdulp
                ).encode() + payload  # fmt: skip
                answered += header.last
            connection.receive(sender.send(segment))
            settle()
        got = list(normal_reads(segments(octets, crc=to_server.crc)))
        assert got == list(normal_reads(segments(to_server.octets, crc=to_server.crc)))
        statuses = {"success": WcStatus.SUCCESS, "Work Request Flushed Error": WcStatus.FLUSHED}
        # siw completes a Write as soon as it is sent, before a Read that was posted earlier.
        ended = [record for record in client if record["ev"] == "wc"]
        ended.sort(key=lambda record: record["wr"])
        assert [(wc.wr_id, wc.status) for wc in taken] == [
            (record["wr"], statuses[record["status_s"]]) for record in ended
        ]
        terminated = any(map(is_terminate, segments(to_client.octets, crc=to_client.crc)))
        assert connection.closed == terminated == (connection.qp.received is not None)
        written = [each for each in pd.regions if each.access & Access.REMOTE_WRITE]
        assert not written, "a Read's sink is registered for the time of the Read alone"
    expected = unpack(path.with_name(f"{name}.client.sink.bin.gz"))
    assert sink == (bytes([SINK_PAINT]) * len(sink) if expected is None else expected)


def is_read(segment: bytes) -> bool:
    return opcode(decode_segment(segment)[0]) == Message.READ_REQUEST
