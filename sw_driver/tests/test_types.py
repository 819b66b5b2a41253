"""Tests of the checks of a caller's values: buffers, integers and objects of any type."""

# Most values here have other types than the driver's annotations allow, on purpose.
# mypy: disable-error-code="arg-type, call-overload, list-item"

from __future__ import annotations

import asyncio
import ctypes
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rnic.sim.devices.live import SimTransport
from ddp_rnic.sw_driver import (
    CQ,
    MR,
    PD,
    Access,
    Association,
    Device,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    RnicTimeout,
    StateError,
    Stream,
    TransportError,
    WrongType,
)
from ddp_rnic.sw_driver.cm import Connection, MpaSource
from ddp_rnic.sw_driver.prm import connect
from ddp_rnic.sw_driver.rdmap import CQ as RdmapCQ
from ddp_rnic.sw_driver.rdmap import QP, Opcode
from ddp_rnic.sw_driver.tests.conftest import Bench, begin
from ddp_rnic.sw_driver.tests.managed import managed
from ddp_rnic.sw_driver.transports.ethernet import BoardEthernet
from ddp_rnic.sw_driver.transports.mapped import MappedTransport, Pagemap
from ddp_rnic.sw_driver.transports.recorded import Recorder, Replay
from ddp_rnic.sw_driver.transports.tcp import BoardTcp
from ddp_rnic.sw_driver.transports.uart import UartTransport
from ddp_rnic.sw_driver.verbs.sending import SendSettings

Call = Callable[[Any], object]


@pytest.fixture
def qp(bench: Bench) -> Iterator[QP]:
    with RdmapCQ(bench.context) as cq:
        with QP(bench.pd, cq, MpaSource(1440, crc=True, markers=False)) as qp:
            yield qp


# --- buffers whose items are references -----------------------------------------------------------


class Record(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("object", ctypes.py_object)]


class Packed(ctypes.Structure):
    """Its format is B, which does not show the reference."""

    _pack_ = 1
    _fields_ = [("count", ctypes.c_int), ("object", ctypes.py_object)]


class Derived(Packed):
    _fields_ = [("more", ctypes.c_int)]


class Either(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("object", ctypes.py_object)]


REFERENCES: dict[str, Callable[[], object]] = {
    "objects": lambda: np.zeros(4, object),
    "no axis": lambda: np.array(None, object),
    "a field": lambda: np.zeros(4, [("number", "i8"), ("object", "O")]),
    "a nested field": lambda: np.zeros(4, [("outer", [("inner", "O", (2, 2))])]),
    "a field beside a date": lambda: np.zeros(4, [("when", "M8[s]"), ("object", "O")]),
    "strings of numpy": lambda: np.array(["a"] * 4, np.dtypes.StringDType()),
    "a memoryview": lambda: memoryview(np.zeros(4, object)),
    "a part": lambda: memoryview(np.zeros(8, object))[2:4],
    "octets over objects": lambda: np.frombuffer(memoryview(np.zeros(4, object)), np.uint8),
    "a view over them": lambda: memoryview(np.frombuffer(np.zeros(4, object).data, np.uint8)[8:]),
    "a recarray": lambda: np.rec.fromarrays([[1, 2], [None, None]]),
    "py_object": lambda: ctypes.py_object(),
    "py_objects": lambda: (ctypes.py_object * 4)(),
    "py_objects cast": lambda: memoryview((ctypes.py_object * 4)()).cast("B"),
    "a structure": lambda: Record(),
    "structures": lambda: ((Record * 2) * 2)(),
    "packed structures": lambda: (Packed * 2)(),
    "a derived structure": lambda: Derived(),
    "a union": lambda: Either(),
    "strings of C": lambda: (ctypes.c_char_p * 4)(),
    "wide strings of C": lambda: (ctypes.c_wchar_p * 4)(),
    "addresses": lambda: (ctypes.c_void_p * 4)(),
    "pointers": lambda: (ctypes.POINTER(ctypes.c_int) * 4)(),
    "functions": lambda: (ctypes.CFUNCTYPE(ctypes.c_int) * 4)(),
}


def _kind(value: object) -> str:
    """Returns the name of a value's type, which is the same in every worker of pytest-xdist."""
    return type(value).__name__


each_reference = pytest.mark.parametrize("make", REFERENCES.values(), ids=REFERENCES)


@each_reference
def test_a_buffer_whose_items_are_references_is_refused_wherever_it_enters(
    bench: Bench, qp: QP, make: Callable[[], object]
) -> None:
    buffer, region = make(), bench.pd.register(bytearray(256))
    entries: list[Call] = [
        bench.pd.register,
        lambda b: bench.pd.register(b, Access.LOCAL_WRITE),
        bench.stream.post_recv,
        lambda b: bench.stream.post_recv(b, length=1),
        qp.post_recv,
        lambda b: qp.post_send(Opcode.RDMA_READ, b, stag=1),
        # Sending such a buffer would disclose addresses of this process to the peer.
        lambda b: qp.post_send(Opcode.RDMA_WRITE, b, stag=1),
        lambda b: qp.post_send(Opcode.SEND, b),
        region.write,
        Connection(bench.sim.send, bench.pd, qp.cq).receive,
    ]
    for entry in entries:
        with pytest.raises(InvalidRequest, match="holds references, .*: use an array of numbers"):
            entry(buffer)
    assert bench.context.regions == {region} and qp.data_to_send() == b""
    assert bench.stream.outstanding(0) == 0 and region.read(256) == bytes(256)


def test_a_managers_client_refuses_references_too(tmp_path: Path) -> None:
    with managed(tmp_path), connect(tmp_path / "rnic.sock") as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            for name, make in REFERENCES.items():
                for entry in (pd.register, stream.post_recv, context.free):
                    with pytest.raises(InvalidRequest, match="holds references"):
                        entry(make())
                        pytest.fail(name)
            assert not context.regions and stream.outstanding(0) == 0


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros(4, [("O", "i4"), ("Px", "i4", (2, 2)), ("Z&", "u1")]),
        np.zeros(4, np.complex128),
        np.zeros(4, [("point", np.complex64), ("name", "U3")]),
        np.array(0, np.int64),
        np.zeros(4, bool),
        np.zeros(4, "V3"),
        (ctypes.c_wchar * 4)(),
        (ctypes.c_double * 4)(),
        np.frombuffer(bytearray(8), np.uint16),
    ],
    ids=_kind,
)
def test_plain_items_are_taken_whatever_their_names(bench: Bench, buffer: Any) -> None:
    with bench.pd.register(buffer) as region:
        octets = bytes(region.length)
        assert region.read(region.length) == memoryview(buffer).tobytes() == octets
        bench.peer.write(region.stag, 1, b"\1")
        bench.cq.wait(10)
        assert region.read(2) == b"\0\1"


# --- dates, and other dtypes for which numpy exposes no buffer ------------------------------------


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]"])
def test_dates_are_refused_with_the_reason_and_their_view_is_taken(
    bench: Bench, qp: QP, dtype: str
) -> None:
    """Arrays of dates are refused, because numpy exposes no buffer for them.

    If they were converted to integers unasked, the registered array would not be the caller's
    array.
    """
    array = np.zeros(4, dtype)
    entries: list[Call] = [
        bench.pd.register, bench.stream.post_recv, qp.post_recv,
        lambda b: qp.post_send(Opcode.SEND, b),
        lambda b: qp.post_send(Opcode.RDMA_READ, b, stag=1),
    ]  # fmt: skip
    for entry in entries:
        with pytest.raises(InvalidRequest) as caught:
            entry(array)
        assert not isinstance(caught.value, TypeError)
        assert f"numpy exposes no buffer of dtype {array.dtype}" in str(caught.value)
        assert "pass the array's .view('i8'), which is the same memory" in str(caught.value)
    with bench.pd.register(array.view("i8")) as region:
        bench.peer.write(region.stag, 8, (86400).to_bytes(8, "little"))
        bench.cq.wait(10)
    assert array[1] == np.array(86400, dtype)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(4, [("when", "M8[s]"), ("count", "i4")]),
        np.zeros(4, np.dtype({"names": "ab", "formats": ["i4", "i2"], "offsets": [0, 2]})),
        np.zeros(4, [("a:b", "i4")]),
    ],
    ids=["record with a date", "overlapping fields", "colon in a name"],
)
def test_other_arrays_without_a_buffer_are_refused_with_a_view_that_is_taken(
    bench: Bench, array: Any
) -> None:
    with pytest.raises(
        InvalidRequest, match=r"exposes no buffer .*: pass the array's \.view\('u1'\)"
    ):
        bench.pd.register(array)
    with bench.pd.register(array.view("u1")) as region:
        assert region.length == array.nbytes


def test_buffers_that_cannot_be_written_are_refused_with_their_reason(bench: Bench) -> None:
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    released = memoryview(bytearray(4))
    released.release()
    for buffer, message in (
        (frozen, "this ndarray is read-only"),
        (frozen.data, "this memoryview is read-only"),
        (np.broadcast_to(np.zeros(1), (4,)), "this ndarray is read-only"),
        (np.zeros((4, 4), order="F"), r"contiguous in C's order: register the array's transpose"),
        (np.zeros(8)[::2], "must be contiguous: copy the array"),
        (np.zeros(8)[::-1], "must be contiguous: copy the array"),
        (memoryview(bytearray(8))[::2], "must be contiguous: copy the array"),
        (np.zeros(0), "at least one octet"),
        ((ctypes.c_int * 0)(), "at least one octet"),
        (released, "memoryview exposes no buffer: operation forbidden on released"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            bench.pd.register(buffer)
        with pytest.raises(InvalidRequest, match=message):
            bench.stream.post_recv(buffer)
    assert not bench.context.regions and bench.stream.outstanding(0) == 0


# --- integers -------------------------------------------------------------------------------------


class Index:
    """An integer only by its ``__index__``."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def calls(bench: Bench, qp: QP) -> dict[str, tuple[Call, int]]:
    """Returns calls that take an integer, each with a value that it accepts."""
    context, pd, cq, stream = bench.context, bench.pd, bench.cq, bench.stream
    region = pd.register(bytearray(64))
    connection = [bench.sim.send, pd, qp.cq]
    return {
        "register: to": (lambda n: pd.register(bytearray(8), to=n), 4096),
        "register: access": (lambda n: pd.register(bytearray(8), n), 3),
        "MR.read: length": (lambda n: region.read(n), 8),
        "MR.read: offset": (lambda n: region.read(8, n), 8),
        "MR.write: offset": (lambda n: region.write(b"x", n), 8),
        "CQ: cqe": (lambda n: CQ(context, n), 16),
        "CQ.poll": (lambda n: cq.poll(n), 16),
        "Stream: number": (lambda n: Stream(pd, cq, number=n).close(), 7),
        "Stream: queues": (lambda n: Stream(pd, cq, queues=[n]).close(), 2),
        "post_recv: qn": (lambda n: stream.post_recv(None, n), 1),
        "post_recv: offset": (lambda n: stream.post_recv(bytearray(64), offset=n), 8),
        "post_recv: length": (lambda n: stream.post_recv(region, length=n), 8),
        "open: completions": (lambda n: Device(bench.sim).open(completions=n).close(), 64),
        "open: coalesce": (lambda n: Device(bench.sim).open(coalesce=n).close(), 4),
        "open: timeout": (lambda n: Device(bench.sim).open(timeout=n).close(), 100),
        "rdmap CQ: cqe": (lambda n: RdmapCQ(context, n), 16),
        "rdmap CQ.poll": (lambda n: qp.cq.poll(n), 16),
        "QP: ird": (lambda n: QP(pd, qp.cq, qp.source, ird=n).close(), 2),
        "QP: ord": (lambda n: QP(pd, qp.cq, qp.source, ord=n).close(), 2),
        "QP.post_recv: offset": (lambda n: qp.post_recv(bytearray(64), offset=n), 8),
        "post_send: stag": (lambda n: qp.post_send(Opcode.RDMA_WRITE, b"x", stag=n), 5),
        "post_send: to": (lambda n: qp.post_send(Opcode.RDMA_WRITE, b"x", stag=1, to=n), 5),
        "Connection: ird": (lambda n: Connection(*connection, ird=n), 2),
        "Connection: ord": (lambda n: Connection(*connection, ord=n), 2),
        "Connection: mulpdu": (lambda n: Connection(*connection, mulpdu=n), 1000),
        "MpaSource: mulpdu": (lambda n: MpaSource(n, crc=True, markers=False), 1000),
        "SendSettings: mulpdu": (lambda n: SendSettings(n, True, False).checked(), 1000),
        "SendSettings: ahead": (lambda n: SendSettings(500, True, False, True, n).checked(), 1000),
        "connect: rtr_stag": (lambda n: Connection(*connection).connect(rtr_stag=n), 1),
        "connect: revision": (lambda n: Connection(*connection).connect(revision=n), 1),
    }


def test_integers_of_any_type_are_taken_wherever_an_integer_is(bench: Bench, qp: QP) -> None:
    """Everything that operator.index accepts: numpy's integers are no subclass of int."""
    for name, (call, value) in calls(bench, qp).items():
        if name.startswith("open"):
            continue  # opening would take the device from the bench
        for kind in (int, np.int64, np.uint16, Index, np.array):
            try:
                call(kind(value))
            except RnicError as error:
                pytest.fail(f"{name}, {kind.__name__}: {error}")
    assert not bench.peer.sim.exceptions()


@pytest.mark.parametrize("kind", [np.int64, np.uint16, Index])
def test_a_device_is_opened_with_integers_of_any_type(kind: Call) -> None:
    with SimTransport() as sim:
        with Device(sim).open(
            completions=kind(64), coalesce=kind(2), timeout=kind(100)
        ) as context:  # fmt: skip
            assert context.counters()


def test_an_integer_of_numpys_is_an_int_inside(bench: Bench) -> None:
    """Arithmetic in numpy's 16 bits would wrap."""
    region = bench.pd.register(bytearray(64), np.int8(3), to=np.uint64(1 << 63))
    assert type(region.to) is int and region.access is Access.LOCAL_WRITE | Access.REMOTE_WRITE
    bench.peer.write(region.stag, (1 << 63) + 60, b"octe")
    assert bench.cq.wait(10)[0].mr is region and bytes(region.view[60:]) == b"octe"
    buffer = bytearray(70_000)
    bench.stream.post_recv(buffer, offset=np.uint16(65_000), length=np.uint16(5000))
    bench.peer.send(b"x" * 5000)
    bench.cq.wait(10)
    assert buffer[65_000:] == b"x" * 5000 and not any(buffer[:65_000])


@pytest.mark.parametrize(
    "value",
    [True, False, np.True_, 8.0, np.float32(8), math.nan, "8", b"8", [8], {}, object(), 8j],
    ids=_kind,
)
def test_what_is_no_integer_is_refused_as_such(bench: Bench, qp: QP, value: object) -> None:
    for name, (call, _) in calls(bench, qp).items():
        with pytest.raises(InvalidRequest) as caught:
            call(value)
        told = str(caught.value)
        assert isinstance(caught.value, TypeError), name
        assert "must be" in told and ("integer" in told or name == "register: access"), name
        assert f"not {'the bool ' * isinstance(value, bool)}" in told and len(told) < 300, name


# --- objects of another class ---------------------------------------------------------------------


def test_a_stream_made_with_its_arguments_swapped_says_how_they_are_to_be(bench: Bench) -> None:
    message = r"must be an? \w+, not <ddp_rnic.*: call Stream\(pd, cq\)"
    for arguments in (
        (bench.cq, bench.pd),
        (bench.pd, bench.pd),
        (bench.cq, bench.cq),
        (bench.context, bench.cq),
        (bench.pd, bench.stream),
        (bench.pd, None),
    ):
        with pytest.raises(TypeError, match=message.replace("<ddp_rnic", "<?")):
            Stream(*arguments)
    assert bench.context.streams == {bench.stream.number: bench.stream}


def test_constructors_check_what_they_are_given(bench: Bench, qp: QP, tmp_path: Path) -> None:
    context, pd, cq, source = bench.context, bench.pd, bench.cq, qp.source
    send, wrong = bench.sim.send, object()
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: Device(wrong), "a device's transport must be a Transport, not <object"),
        (lambda: Device(context), "a device's transport must be a Transport, not <"),
        (lambda: PD(bench.sim), "a protection domain's context must be a Context, not <"),
        (lambda: PD(Device(bench.sim)), "must be a Context, not <"),
        (lambda: CQ(pd), "a completion queue's context must be a Context, not <"),
        (lambda: MR(cq, bytearray(8), 1), "a region's protection domain must be a PD, not <"),
        (lambda: pd.register(bytearray(8), stream=3), "a region's stream must be a Stream, not 3"),
        (lambda: Stream(pd, qp.cq), "a stream's completion queue must be a CQ, not <"),
        (lambda: Stream(pd, cq, crc="no"), "crc must be True or False, not 'no'"),
        (lambda: Stream(pd, cq, markers=2), "markers must be True or False, not 2"),
        (lambda: Stream(pd, cq, queues=1), r"queues must be Queue Numbers, such as \[0, 1\], "),
        (lambda: Stream(pd, cq, association=1), "association must be an Association, not 1"),
        (lambda: RdmapCQ(pd), "a completion queue's context must be a Context, not <"),
        (lambda: QP(qp.cq, pd, source), r"domain must be a PD, .*: call QP\(pd, cq, source\)"),
        (lambda: QP(pd, cq, source), r"queue must be a CQ, .*, with the CQ of RDMAP"),
        (lambda: QP(pd, qp.cq, bench.peer), "a queue pair's source must be a Source, not <"),
        (lambda: QP(pd, qp.cq, source, crc=None), "crc must be True or False, not None"),
        (lambda: QP(pd, qp.cq, SendSettings(9.5, True, False)), "mulpdu must be at least 128, and"),
        (lambda: QP(pd, qp.cq, SendSettings(900, 1, False)), "crc must be True or False, not 1"),
        (lambda: MpaSource(9.5, crc=True, markers=False), "mulpdu must be from 128 to 64768, and"),
        (lambda: MpaSource(900, crc=1, markers=False), "crc must be True or False, not 1"),
        (lambda: MpaSource(900, crc=True, markers=0), "markers must be True or False, not 0"),
        (lambda: Connection(pd, send, qp.cq), r"must be a Callable.*Connection\(deliver, pd, cq\)"),
        (lambda: Connection(send, qp.cq, pd), "a connection's protection domain must be a PD"),
        (lambda: Connection(send, pd, cq), "a connection's completion queue must be a CQ"),
        (lambda: Connection(send, pd, qp.cq, crc=3), "crc must be True or False, not 3"),
        (lambda: Association(pd, paths=[], ports=(1, 2), tag=1, tsn=1), "must be a Context, not"),
        (lambda: BoardTcp(bench.sim), "a board's link must be a BoardLink, not <"),
        (lambda: BoardEthernet(None), "a board's link must be a BoardLink, not None"),
        (lambda: UartTransport(7), "port must be a device or a URL, not 7"),
        (lambda: MappedTransport(tmp_path, None), "memory must be a HostMemory, not None"),
        (lambda: Recorder(None, tmp_path / "r"), "what is recorded must be a Transport, not None"),
    ]  # fmt: skip
    for attempt, message in attempts:
        with pytest.raises(WrongType, match=message):
            attempt()
            pytest.fail(message)
    assert not (tmp_path / "r").exists()
    assert set(context.cqs) == {cq, qp.cq.messages} and context.pds == {pd}
    assert set(context.streams.values()) == {bench.stream, qp.stream}


def test_methods_check_what_they_are_given(bench: Bench, qp: QP) -> None:
    region = bench.pd.register(bytearray(8))
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: bench.cq.wait("soon"), "timeout must be seconds, or None, not 'soon'"),
        (lambda: bench.cq.wait(True), "timeout must be seconds, or None, not True"),
        (lambda: qp.cq.wait([1]), r"timeout must be seconds, or None, not \[1\]"),
        (lambda: bench.cq.wait(math.nan), "timeout must be seconds, or None, not nan"),
        (lambda: bench.stream.post_recv(bench.cq), "a buffer must be writable memory.* not CQ"),
        (lambda: region.write("text"), "a message must be octets, not str"),
        (lambda: qp.post_send("send", b""), "opcode must be one of .*, not 'send'"),
        (lambda: qp.post_send([], b""), r"opcode must be one of .*, not \[\]"),
        (lambda: qp.post_send(Opcode.SEND, b"", solicited="y"), "solicited must be True or False"),
        (
            lambda: bench.pd.register(bytearray(8), "rw"),
            "access must be a combination of .*, not 'rw'",
        ),
        (lambda: bench.pd.register(bytearray(8), 16), "access must be a combination of .*, not 16"),
    ]
    for attempt, message in attempts:
        with pytest.raises(InvalidRequest, match=message):
            attempt()
            pytest.fail(message)
    assert qp.data_to_send() == b""


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 10**30, np.float64(5), np.int64(5)])
def test_times_of_any_length_are_taken(bench: Bench, qp: QP, timeout: Any) -> None:
    bench.stream.post_recv(bytearray(4), wr_id="received")
    bench.peer.send(b"1")
    assert bench.cq.wait(timeout)[0].wr_id == "received"
    qp.post_send(Opcode.SEND, b"1", wr_id="sent")
    assert asyncio.run(qp.cq.wait_async(timeout))[0].wr_id == "sent"
    with pytest.raises(RnicTimeout):
        bench.cq.wait(-timeout)


def test_a_managers_client_takes_what_does_not_fit_its_frames_for_too_much(tmp_path: Path) -> None:
    with managed(tmp_path), connect(tmp_path / "rnic.sock") as context:
        for call in (lambda: CQ(context, 1 << 40), lambda: context.allocate(1 << 70)):
            with pytest.raises(ResourceExhausted):
                call()
        with CQ(context) as cq, pytest.raises(RnicTimeout):
            cq.wait(-math.inf)


@pytest.mark.parametrize("path", [None, 7, b"/dev/null", "a\0b"], ids=repr)
def test_what_is_no_path_is_refused(bench: Bench, tmp_path: Path, path: Any) -> None:
    attempts: list[Call] = [connect, Replay, lambda p: Recorder(bench.sim, p)]
    for attempt in [*attempts, lambda p: MappedTransport(p, Pagemap())]:
        with pytest.raises(InvalidRequest, match="path must be a file's path, not"):
            attempt(path)


def test_a_long_value_is_cut_in_messages(bench: Bench) -> None:
    with pytest.raises(WrongType) as caught:
        CQ(bench.context, bytearray(1 << 20))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("baudrate", "message"),
    [
        (0, "baudrate must be at least 1, not 0"),
        (-115200, "baudrate must be at least 1, not -115200"),
        (1e6, "baudrate must be at least 1, and an integer, not 1000000.0"),
        ("115200", "baudrate must be at least 1, and an integer, not '115200'"),
        (None, "baudrate must be at least 1, and an integer, not None"),
        (True, "baudrate must be at least 1, and an integer, not the bool True"),
        (1 << 70, "the serial port /dev/ptmx cannot be opened: "),
    ],
)
def test_a_baud_rate_that_cannot_be_is_refused_in_one_sentence(
    baudrate: object, message: str
) -> None:
    with pytest.raises(RnicError) as caught:
        UartTransport("/dev/ptmx", baudrate)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


# --- exceptions of the user -----------------------------------------------------------------------


class Own(Exception):
    """An exception of the user."""


def test_the_users_exception_is_what_leaves_a_block_with_receives_posted(bench: Bench) -> None:
    with pytest.raises(Own) as caught, bench.pd.register(bytearray(64)) as region:
        bench.stream.post_recv(region)
        raise Own
    (note,) = caught.value.__notes__
    assert note.startswith("Closing failed, too: StateError: 1 receive buffers of the region are")
    # Without an exception of the user, the failure to close is raised.
    with pytest.raises(StateError, match="1 receive buffers of the region are posted"):
        with region:
            pass


def test_the_users_exception_leaves_every_block_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds although the link fails when each object is closed."""
    with SimTransport() as sim:
        bench = begin(sim)
        region = bench.pd.register(bytearray(64))
        bench.stream.post_recv(region)
        cq = RdmapCQ(bench.context)
        qp = QP(bench.pd, cq, MpaSource(1440, crc=True, markers=False))

        def fail(*_: object) -> int:
            raise TransportError("the cable is out")

        for one in (region, bench.stream, qp, cq, bench.cq, bench.pd, bench.context):
            with monkeypatch.context() as patch, pytest.raises(Own) as caught:
                patch.setattr(sim, "read", fail)
                patch.setattr(sim, "write", fail)
                with one:
                    raise Own
            assert caught.value.__context__ is None and len(caught.value.__notes__) == 1, one


def test_the_users_exception_leaves_the_blocks_of_a_managers_client(tmp_path: Path) -> None:
    with managed(tmp_path), connect(tmp_path / "rnic.sock") as context:
        with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
            with pytest.raises(Own), pd.register(bytearray(8)) as region:
                stream.post_recv(region)
                raise Own
        with pytest.raises(Own) as caught:
            with PD(context) as pd, CQ(context) as cq, Stream(pd, cq) as stream:
                stream.post_recv(bytearray(8))
                context.link.close()
                raise Own
    assert len(caught.value.__notes__) == 3
