"""Tests of the driver on a device that only sends: it sends, and refuses the rest clearly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import Kind, Piece
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sim.devices.peer.entries import RingEntries, broken
from ddp_rnic.sim.model.ddp import TaggedHeader, UntaggedHeader, decode_segment
from ddp_rnic.sim.model.mpa import Fpdu, MpaReceiver
from ddp_rnic.sw_driver import (
    CQ,
    MR,
    PD,
    Access,
    Context,
    Device,
    InvalidRequest,
    StateError,
    Stream,
    UnsupportedDevice,
    WrongType,
    rdmap,
)
from ddp_rnic.sw_driver.cm.connection import Connection
from ddp_rnic.sw_driver.prm.server import Manager
from ddp_rnic.sw_driver.tests.test_open import Constants
from ddp_rnic.sw_driver.verbs.cq import Opcode, WcStatus
from ddp_rnic.sw_driver.verbs.sending import Part, SendSettings

CONFIG = RnicConfig(receive=False, transmit=True)
SETTINGS = SendSettings(1440, crc=True, markers=False)


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[SimTransport, Context]]:
    with SimTransport(CONFIG) as sim, Device(sim).open() as context:
        yield sim, context


@pytest.fixture
def context(opened: tuple[SimTransport, Context]) -> Context:
    return opened[1]


def test_it_opens_and_shows_that_it_does_not_receive(context: Context) -> None:
    found = context.capabilities
    assert (found.receives, found.buffer, found.queue, found.buffers) == (False, 0, 0, 0)
    assert found.streams == CONFIG.streams and found.cqs == CONFIG.completion_queues
    assert context.sends and not context.responds and not context.reads
    assert context.events() == []


def test_messages_leave_and_complete_and_a_revoked_region_is_not_read(context: Context) -> None:
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    octets = bytes(range(256)) * 20
    delivered = context.counters()["DELIVERED"]
    with Stream(pd, cq) as stream, pd.register(bytearray(octets), Access.LOCAL_READ) as region:
        half = stream.send_by(SETTINGS, fpdus.extend)
        half.post(Kind.TAGGED, Part(region, 3, 5000), wr_id="write", stag=0x77, to=9)
        half.post(Kind.UNTAGGED, b"a Send", wr_id="send")
        done = cq.wait(5)
        while len(done) < 2:
            done += cq.wait(5)
        assert [(each.wr_id, each.status, each.opcode) for each in done] == [
            ("write", WcStatus.SUCCESS, Opcode.SENT), ("send", WcStatus.SUCCESS, Opcode.SENT),
        ]  # fmt: skip
        frames = MpaReceiver().receive(b"".join(fpdus))
        segments = [decode_segment(each.ulpdu) for each in frames if isinstance(each, Fpdu)]
        assert b"".join(payload for _, payload in segments[:-1]) == octets[3:5003]
        assert segments[-1][1] == b"a Send"
        counters = context.counters()
        assert set(counters) == {"DELIVERED", "DOORBELLS_IGNORED"}
        assert 1 <= counters["DELIVERED"] - delivered <= 2
        del fpdus[:]
        region.close()
        piece = Piece(region.stag, 10, 0)
        half.post(Kind.TAGGED, piece, wr_id="revoked", stag=0x77)
        (ended,) = cq.wait(5)
        assert (ended.wr_id, ended.status, fpdus) == ("revoked", WcStatus.NOT_READ, [])


def impossible(region: MR) -> list[tuple[Kind, Any, dict[str, Any], str]]:
    """Returns posts that no device can send, each with its error message."""
    half, tagged, send = Part(region, 0, 1 << 31), Kind.TAGGED, Kind.UNTAGGED
    return [
        (tagged, [half, half], {}, r"length must be from 0 to 2\*\*32 - 1, not 4294967296"),
        (tagged, Part(region, 0, 1 << 32), {}, r"length must be from 0 to 2\*\*32 - 1"),
        (tagged, [Part(region, 0, 1)] * 256, {}, r"pieces must be from 0 to 2\*\*8 - 1, not 256"),
        (tagged, b"octets", {"stag": 1 << 32}, r"stag must be from 0 to 2\*\*32 - 1"),
        (tagged, b"octets", {"to": -1}, r"to must be from 0 to 2\*\*64 - 1, not -1"),
        (send, b"octets", {"qn": 4}, r"opened with, \[0, 1, 2, 3\], not 4"),
        (send, b"octets", {"qn": 1 << 32}, r"opened with, \[0, 1, 2, 3\], not 4294967296"),
        (send, b"octets", {"qn": "first"}, "qn must be an integer, not 'first'"),
        (send, b"", {"rsvdulp": 1 << 40}, r"rsvdulp must be from 0 to 2\*\*40 - 1"),
        (send, "text", {}, "body must be a bytes object, a Part, a list of Parts or a Piece, not"),
        (Kind.CONTROL, b"", {}, "a CONTROL message must be sent on a stream over SCTP"),
    ]


def of_wrong_type(region: MR) -> list[tuple[Any, Any, dict[str, Any], str]]:
    """Returns posts with a value of another type, each with its error message."""
    tagged, fields = Kind.TAGGED, "a message's fields are rsvdulp, qn, stag, to, and not"
    return [
        ("TAGGED", b"x", {}, "a message's kind must be a Kind, not 'TAGGED'"),
        (9, b"x", {}, "a message's kind must be a Kind, not 9"),
        (0, b"x", {}, "a message's kind must be a Kind, not 0"),
        (tagged, b"x", {"zz": 1}, f"{fields} 'zz'"),
        (tagged, b"x", {"octets": b"y"}, f"{fields} 'octets'"),
        (tagged, b"x", {"to": 0.5}, "to must be an integer, not 0.5"),
        (tagged, b"x", {"fence": 2}, "fence must be True or False, not 2"),
        (tagged, [1, 2], {}, "a part of a message's body must be a Part, not 1"),
        (tagged, [Part(region, 0, 1), b"x"], {}, "body must be a Part, not b'x'"),
        (tagged, Part(b"x", 0, 1), {}, "a part's region must be an MR, not b'x'"),  # type: ignore
        (tagged, Part(region, 0.0, 1), {}, "a part's offset must be"),  # type: ignore
        (tagged, Part(region, 0, 0.0), {}, "a part's length must be"),  # type: ignore
        (tagged, Piece("x", 0, 1), {}, "a piece's stag must be an integer"),  # type: ignore
        (tagged, Piece(1, 2, None), {}, "a piece's to must be an"),  # type: ignore
    ]


def test_a_message_that_cannot_be_sent_is_refused_and_the_next_one_leaves(
    context: Context,
) -> None:
    """RFC 5041 section 5.2: "The ULP Message Length MUST be less than 2^32." """
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    with Stream(pd, cq) as stream, pd.register(bytearray(9), Access.LOCAL_READ) as region:
        half = stream.send_by(SETTINGS, fpdus.extend)
        for kind, body, fields, said in impossible(region):
            with pytest.raises(InvalidRequest, match=said):
                half.post(kind, body, **fields)
        for kind, body, fields, said in of_wrong_type(region):
            with pytest.raises(WrongType, match=said):
                half.post(kind, body, **fields)
        assert not half.busy
        half.post(Kind.UNTAGGED, b"the next", wr_id="next")
        (ended,) = cq.wait(5)
        assert (ended.wr_id, ended.status) == ("next", WcStatus.SUCCESS)
        (fpdu,) = MpaReceiver().receive(b"".join(fpdus))
        assert isinstance(fpdu, Fpdu)
        header, octets = decode_segment(fpdu.ulpdu)
        assert octets == b"the next" and isinstance(header, UntaggedHeader) and header.msn == 1


def test_a_message_leaves_only_on_a_queue_that_the_stream_was_opened_with(
    context: Context,
) -> None:
    """The others of this number may have the MSN of an earlier stream."""
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    with Stream(pd, cq, queues=[2]) as stream:
        half = stream.send_by(SETTINGS, fpdus.extend)
        for qn in (0, 1, 3):
            with pytest.raises(InvalidRequest, match=rf"opened with, \[2\], not {qn}"):
                half.post(Kind.UNTAGGED, b"wrong", qn=qn)
        half.post(Kind.UNTAGGED, b"right", qn=2)
        half.post(Kind.TAGGED, b"has no queue", stag=1)
        while half.busy:
            cq.wait(5)
        assert len(fpdus) == 2


def test_integers_of_numpy_are_sent_as_others_are(context: Context) -> None:
    """Arithmetic in numpy's 32 bits would lose the upper half of an entry's fields."""
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    with Stream(pd, cq) as stream, pd.register(bytearray(b"octets"), Access.LOCAL_READ) as region:
        mulpdu: Any = np.uint16(1440)
        settings = SendSettings(mulpdu, crc=True, markers=False)
        half = stream.send_by(settings, fpdus.extend)
        offset: Any = np.uint8(1)
        number: Any = np.uint32(0x89ABCDEF)
        half.post(Kind.TAGGED, Part(region, offset, 3 * offset), stag=number, to=number)
        half.post(Kind.TAGGED, b"octets", stag=number, to=number)
        while half.busy:
            cq.wait(5)
        frames = MpaReceiver().receive(b"".join(fpdus))
        segments = [decode_segment(each.ulpdu) for each in frames if isinstance(each, Fpdu)]
        header = TaggedHeader(0x89ABCDEF, 0x89ABCDEF, True)
        assert segments == [(header, b"cte"), (header, b"octets")]


SETTINGS_REFUSED: list[tuple[dict[str, Any], type[InvalidRequest], str]] = [
    ({"mulpdu": -1}, InvalidRequest, "mulpdu must be at least 128, not -1"),
    ({"mulpdu": 0}, InvalidRequest, "mulpdu must be at least 128, not 0"),
    ({"mulpdu": 14}, InvalidRequest, "mulpdu must be at least 128, not 14"),
    ({"mulpdu": 127}, InvalidRequest, "mulpdu must be at least 128, not 127"),
    ({"mulpdu": "a"}, WrongType, "mulpdu must be at least 128, and an integer, not 'a'"),
    ({"mulpdu": 1440.0}, WrongType, "mulpdu must be at least 128, and an integer, not 1440.0"),
    ({"mulpdu": True}, WrongType, "mulpdu must be at least 128, and an integer, not the bool"),
    ({"crc": 1}, WrongType, "crc must be True or False, not 1"),
    ({"markers": None}, WrongType, "markers must be True or False, not None"),
    ({"keeps": "no"}, WrongType, "keeps must be True or False, not 'no'"),
    ({"ahead": -1}, InvalidRequest, "ahead must be from 1 to 1073741824, not -1"),
    ({"ahead": 1 << 40}, InvalidRequest, "ahead must be from 1 to 1073741824, not"),
    ({"ahead": None}, WrongType, "ahead must be from 1 to 1073741824, and an integer, not None"),
]


def test_settings_that_cannot_be_are_refused_before_anything_is_written(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stream(PD(context), CQ(context)) as stream:
        with monkeypatch.context() as patch:
            patch.setattr(context.registers, "start", lambda _: pytest.fail("a command starts"))
            for wrong, error, said in SETTINGS_REFUSED:
                with pytest.raises(error, match=said):
                    stream.send_by(SETTINGS._replace(**wrong), print)
            settings: Any = (1440, True, False)
            with pytest.raises(WrongType, match="settings must be a SendSettings, not"):
                stream.send_by(settings, print)
            leave: Any = []
            with pytest.raises(WrongType, match="what takes the FPDUs .* must be a Callable, not"):
                stream.send_by(SETTINGS, leave)
        assert stream.sending is None


def test_a_mulpdu_of_more_than_16384_octets_counts_as_16384(context: Context) -> None:
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    octets = bytearray(40_000)
    with pd.register(octets, Access.LOCAL_READ) as region, Stream(pd, cq) as stream:
        half = stream.send_by(SETTINGS._replace(mulpdu=1 << 20), fpdus.extend)
        half.post(Kind.TAGGED, Part(region, 0, 40_000), stag=1)
        while half.busy:
            cq.wait(5)
        frames = MpaReceiver().receive(b"".join(fpdus))
        assert [len(each.ulpdu) for each in frames if isinstance(each, Fpdu)] == [
            16384, 16384, 40_000 - 2 * (16384 - 14) + 14,
        ]  # fmt: skip


def test_a_second_sending_half_is_refused_and_the_next_stream_of_the_number_sends(
    context: Context,
) -> None:
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    number = None
    for _ in range(2):
        with Stream(pd, cq, number=number) as stream:
            number = stream.number
            half = stream.send_by(SETTINGS, fpdus.extend)
            with pytest.raises(StateError, match=f"^stream {number} has a sending half already: "):
                stream.send_by(SETTINGS, fpdus.extend)
            assert stream.sending is half
            half.post(Kind.TAGGED, b"octets", wr_id="one", stag=1)
            (ended,) = cq.wait(5)
            assert (ended.wr_id, ended.status) == ("one", WcStatus.SUCCESS)
        # After the stream's end, the half sends nothing, not even on the next stream's ring.
        half.post(Kind.TAGGED, b"late", wr_id="late", stag=1)
        (ended,) = cq.poll()
        assert (ended.wr_id, ended.status) == ("late", WcStatus.FLUSHED)
    assert len(fpdus) == 2


def test_a_device_that_only_receives_gives_no_stream_a_sending_half() -> None:
    with SimTransport() as sim, Device(sim).open() as context:
        with Stream(PD(context), CQ(context)) as stream:
            with pytest.raises(UnsupportedDevice, match="^the device sends nothing, or the host"):
                stream.send_by(SETTINGS, print)


@pytest.mark.parametrize("qn", [0, 1, 2, 3])
def test_the_first_message_of_each_queue_has_msn_1(context: Context, qn: int) -> None:
    """RFC 5041 section 4.3: "The initial value for MSN MUST be one." """
    pd, cq, fpdus = PD(context), CQ(context), list[bytes]()
    for _ in range(2):  # a stream of the same number begins again
        del fpdus[:]
        with Stream(pd, cq) as stream:
            half = stream.send_by(SETTINGS, fpdus.extend)
            for octets in (b"one", b"two"):
                half.post(Kind.UNTAGGED, octets, qn=qn)
            while half.busy:
                cq.wait(5)
            frames = MpaReceiver().receive(b"".join(fpdus))
            found = [decode_segment(each.ulpdu)[0] for each in frames if isinstance(each, Fpdu)]
            headers = [each for each in found if isinstance(each, UntaggedHeader)]
            assert [(each.qn, each.msn) for each in headers] == [(qn, 1), (qn, 2)]


def test_a_wrong_message_fails_that_is_longer_than_what_the_device_reads_at_once(
    context: Context,
) -> None:
    """After a message of many turns the device reads few entries ahead, and flushes the others."""
    pd, cq = PD(context), CQ(context)
    long = pd.register(bytearray(60_000), Access.LOCAL_READ)
    with long as region, Stream(pd, cq) as stream:
        half = stream.send_by(SETTINGS, lambda fpdus: None)
        half.post(Kind.TAGGED, Part(region, 0, 60_000), stag=1, to=0)
        assert [each.status for each in cq.wait(5)] == [WcStatus.SUCCESS]
        entries = RingEntries(half)
        entries.change = broken(random.Random(1))
        half.post(Kind.UNTAGGED, bytes(400), wr_id="wrong")
        entries.change = None
        half.post(Kind.UNTAGGED, b"later", wr_id="later")
        ended = cq.wait(5)
        while len(ended) < 2:
            ended += cq.wait(5)
        assert [(each.wr_id, each.status) for each in ended] == [
            ("wrong", WcStatus.NOT_READ), ("later", WcStatus.FLUSHED),
        ]  # fmt: skip


REFUSED: dict[str, tuple[Callable[[Stream], object], str]] = {
    "a receive buffer": (lambda stream: stream.post_recv(bytearray(9)), "take a receive buffer"),
    "a READ": (
        lambda stream: stream.send_by(SETTINGS, list[bytes]().extend).post(
            Kind.READ, Piece(1, 1, 0)
        ),
        "take the response to an RDMA Read",
    ),
    "bounds of Reads": (
        lambda stream: stream.send_by(SETTINGS, list[bytes]().extend).bound_reads(1),
        "take Read Responses",
    ),
    "a queue pair": (
        lambda stream: rdmap.QP(stream.pd, rdmap.CQ(stream.context), SETTINGS),
        "carry RDMAP, which needs both directions",
    ),
    "a connection": (
        lambda stream: Connection(print, stream.pd, rdmap.CQ(stream.context)),
        "take what a peer sends",
    ),
    "a manager": (
        lambda stream: Manager(stream.context, Path("none"), *[_NONE] * 2),
        "be shared by clients, which receive",
    ),
}  # fmt: skip
_NONE: Any = None


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_cannot_do_is_said_in_one_sentence(context: Context, what: str) -> None:
    call, sentence = REFUSED[what]
    with Stream(PD(context), CQ(context)) as stream:
        with pytest.raises(UnsupportedDevice) as raised:
            call(stream)
        assert str(raised.value) == (
            f"the device does not receive, and cannot {sentence}: build it with"
            " RnicConfig(receive=True)"
        )


def test_no_packet_can_be_given_to_it(opened: tuple[SimTransport, Context]) -> None:
    with pytest.raises(ValueError, match="a packet needs a configuration with mpa and receive"):
        opened[0].send(0, 0, b"x")


def test_a_packet_buffer_of_no_octets_is_that_of_a_device_that_sends_alone() -> None:
    absent = {"CAP_BUFFER": 0, "CAP_QUEUE": 0, "CAP_BUFFERS": 0}
    assert not Device(Constants(absent | {"CAP_SENDS": 1})).query().receives
    with pytest.raises(UnsupportedDevice, match="CAP_BUFFER reads 0, which no RNIC has"):
        Device(Constants(absent)).query()
    with pytest.raises(UnsupportedDevice, match="CAP_QUEUE reads 64, which no RNIC has"):
        Device(Constants(absent | {"CAP_SENDS": 1, "CAP_QUEUE": 64})).query()
