"""Tests of mapped registers and memory. Ordinary files stand for the kernel's devices."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ddp_rnic.hdl.spec import regs
from ddp_rnic.sw_driver import (
    Device,
    InvalidRequest,
    ResourceExhausted,
    RnicError,
    StateError,
    TransportError,
)
from ddp_rnic.sw_driver.base.errors import UnsupportedDevice
from ddp_rnic.sw_driver.tests.test_open import Constants
from ddp_rnic.sw_driver.transports import mapped
from ddp_rnic.sw_driver.transports.mapped import (
    MappedPage,
    MappedTransport,
    Pagemap,
    UDmaBuf,
    UioInterrupt,
    UioMap,
)
from ddp_rnic.sw_driver.transports.memory import Extent, lay_out
from ddp_rnic.sw_driver.transports.pins import SLOTS

PAGE = mmap.PAGESIZE


@pytest.fixture
def registers(tmp_path: Path) -> Path:
    """A BAR with the registers of a device at 0x2000."""
    path = tmp_path / "resource0"
    octets = bytearray(0x2000 + (1 << regs.ADDRESS_BITS))
    for address, value in Constants().values.items():
        octets[0x2000 + address : 0x2004 + address] = struct.pack("<I", value)
    path.write_bytes(octets)
    return path


@pytest.fixture
def udmabuf(tmp_path: Path) -> UDmaBuf:
    (tmp_path / "phys_addr").write_text("0x0000000070000000\n")
    (tmp_path / "size").write_text("65536\n")
    (tmp_path / "udmabuf7").write_bytes(bytes(65536))
    return UDmaBuf(tmp_path / "udmabuf7", tmp_path)


def test_registers_are_words_of_the_file(registers: Path, udmabuf: UDmaBuf) -> None:
    with MappedTransport(registers, udmabuf, offset=0x2000) as transport:
        assert Device(transport).query().streams == 64
        transport.write(regs.address("STAG_INDEX"), 0x89ABCDEF)
        assert transport.read(regs.address("STAG_INDEX")) == 0x89ABCDEF
        begun = time.monotonic()
        transport.wait(10)  # without an interrupt this returns soon
        assert time.monotonic() - begun < 1
    transport.close()
    at = 0x2000 + regs.address("STAG_INDEX")
    assert registers.read_bytes()[at : at + 4] == bytes.fromhex("efcdab89")
    with pytest.raises(TransportError, match="the transport is closed"):
        transport.read(0)


def test_a_wrong_place_is_reported(registers: Path, udmabuf: UDmaBuf, tmp_path: Path) -> None:
    with MappedTransport(registers, udmabuf) as transport:
        with pytest.raises(UnsupportedDevice, match="no device answers"):
            Device(transport).query()
    with pytest.raises(InvalidRequest, match="offset must be a multiple of 4, not 2"):
        MappedTransport(registers, udmabuf, offset=2)
    with pytest.raises(TransportError, match="cannot be mapped from offset 0x8000"):
        MappedTransport(registers, udmabuf, offset=0x8000)
    with MappedTransport(registers, udmabuf), pytest.raises(TransportError, match="is in use"):
        MappedTransport(registers, udmabuf)
    with pytest.raises(TransportError, match="none cannot be opened: No such file"):
        MappedTransport(tmp_path / "none", udmabuf)


def test_the_interrupt_of_uio_is_enabled_read_and_enabled_again() -> None:
    kernel, user = socket.socketpair()
    with kernel, user:
        interrupt = UioInterrupt(user.fileno())
        assert kernel.recv(4) == struct.pack("=I", 1)
        begun = time.monotonic()
        interrupt.wait(0.05)
        assert 0.05 <= time.monotonic() - begun < 2
        kernel.send(struct.pack("=I", 7))
        begun = time.monotonic()
        interrupt.wait(10)
        assert time.monotonic() - begun < 2
        assert kernel.recv(4) == struct.pack("=I", 1)


def test_a_wait_for_the_interrupt_of_uio_is_woken() -> None:
    """A wake ends a wait that has begun, or the next one; and it ends one wait only."""
    kernel, user = socket.socketpair()
    with kernel, user:
        interrupt = UioInterrupt(user.fileno())
        interrupt.wake()
        begun = time.monotonic()
        interrupt.wait(10)
        assert time.monotonic() - begun < 2
        thread = threading.Thread(target=interrupt.wait, args=(10,))
        thread.start()
        time.sleep(0.05)
        interrupt.wake()
        thread.join(2)
        assert not thread.is_alive()
        interrupt.wait(0.05)
        assert 0.05 <= time.monotonic() - begun < 5
        interrupt.close()


def test_closing_ends_all_waits_for_the_interrupt_of_uio(registers: Path, udmabuf: UDmaBuf) -> None:
    """Each thread gets the error, and the descriptors are closed after the last one has left."""
    kernel, user = socket.socketpair()
    errors: list[str] = []

    def wait() -> None:
        try:
            while True:
                transport.wait(60)
        except TransportError as error:
            errors.append(str(error))

    with kernel, user:
        transport = MappedTransport(registers, udmabuf, offset=0x2000)
        transport._interrupt = UioInterrupt(user.fileno())
        woken = transport._interrupt._woken
        threads = [threading.Thread(target=wait, daemon=True) for _ in range(5)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        transport.wake()
        transport.close()
        os.fstat(woken)
        with pytest.raises(TransportError, match="the transport is closed"):
            transport.wait(60)
        for thread in threads:
            thread.join(20)
        assert errors == ["the transport is closed"] * 5
        transport._interrupt = None
        gc.collect()  # the frames of pytest's error
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(woken)


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_closing_waits_until_no_thread_accesses_a_register(
    registers: Path, udmabuf: UDmaBuf, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    transport = MappedTransport(registers, udmabuf, offset=0x2000)
    inside, done, check = threading.Event(), [], transport._check

    def slow() -> None:
        check()
        inside.set()
        time.sleep(0.2)

    def access() -> None:
        if write:
            transport.write(regs.address("STAG_INDEX"), 7)
            done.append(regs.ID)
        else:
            done.append(transport.read(regs.address("ID")))

    monkeypatch.setattr(transport, "_check", slow)
    thread = threading.Thread(target=access)
    thread.start()
    inside.wait(20)
    transport.close()
    assert done == [regs.ID]
    thread.join()


def test_memory_of_a_closed_transport_is_not_accessed(
    registers: Path, udmabuf: UDmaBuf, page: Path
) -> None:
    with MappedTransport(registers, udmabuf, offset=0x2000, pages=[page]) as transport:
        memory = transport.pin(memoryview(bytearray(8)))
        (file,) = transport.page_files
        os.close(file.lend())
    for call in (
        lambda: memory.pull(0, 8),
        lambda: memory.push(0, 8),
        lambda: transport.pin(memoryview(bytearray(8))),
        lambda: file.lent,
        file.lend,
    ):
        with pytest.raises(TransportError, match="the transport is closed"):
            call()
    memory.close()


def test_a_closed_file_is_free_while_a_forked_child_has_it(
    registers: Path, udmabuf: UDmaBuf, tmp_path: Path
) -> None:
    transport = MappedTransport(registers, udmabuf, offset=0x2000)
    child = os.dup(transport._file)  # shares the lock, as the child's does
    try:
        transport.close()
        memory = UDmaBuf(tmp_path / "udmabuf7", tmp_path)
        MappedTransport(registers, memory, offset=0x2000).close()
    finally:
        os.close(child)


def test_a_forked_child_does_not_touch_the_parents_registers(
    registers: Path, udmabuf: UDmaBuf
) -> None:
    """The registers are mapped into the child, too, and so is the memory that the device writes."""
    with MappedTransport(registers, udmabuf, offset=0x2000) as transport:
        before = registers.read_bytes()
        child = os.fork()
        if not child:
            refused = 0
            for call in (
                lambda: transport.read(0),
                lambda: transport.write(8, 5),
                lambda: transport.wait(0.01),
                lambda: transport.pin(memoryview(bytearray(8))),
                lambda: transport.allocate(8),
            ):
                try:
                    call()
                except StateError as error:
                    refused += "open it after the fork" in str(error)
            transport.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert transport.read(regs.address("ID")) == regs.ID
        assert registers.read_bytes() == before


# -- udmabuf --------------------------------------------------------------------------------------


def test_a_buffer_has_its_copy_in_the_udmabuf(udmabuf: UDmaBuf, tmp_path: Path) -> None:
    buffer = bytearray(b"host" * 100)
    memory = udmabuf.pin(memoryview(buffer))
    ring = udmabuf.allocate(1024)
    (extent,), (other,) = memory.extents, ring.extents
    assert extent == Extent(0x70000000, 400) and other == Extent(0x700001C0, 1024)
    with open(tmp_path / "udmabuf7", "r+b") as file, mmap.mmap(file.fileno(), 65536) as device:
        assert device[:400] == buffer
        device[10:16] = b"device"
        memory.pull(12, 2)
        assert bytes(buffer[8:18]) == b"hostvistho"
        memory.view[0:4] = b"HOST"
        memory.push(0, 4)
        assert device[:5] == b"HOSTh"
    with pytest.raises(
        ResourceExhausted, match="70000 consecutive octets of .*udmabuf7 are not free"
    ):
        udmabuf.allocate(70000)
    memory.close()
    buffer.clear()
    ring.close()
    udmabuf.allocate(65536).close()
    udmabuf.close()


def test_a_udmabuf_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="/dev/udmabuf9 cannot be used"):
        UDmaBuf("/dev/udmabuf9", tmp_path)


# -- pagemap --------------------------------------------------------------------------------------


def start_of(buffer: object) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer))  # type: ignore[arg-type]


def write_pagemap(path: Path, pages: dict[int, int]) -> None:
    """Writes a pagemap with these entries, by page number."""
    with open(path, "wb") as file:
        for page, entry in pages.items():
            file.seek(8 * page)
            file.write(struct.pack("=Q", entry))


def pinned_slots(pagemap: Pagemap) -> int:
    return SLOTS - len(pagemap.pins._free)


@pytest.mark.usefixtures("pins")
def test_pages_are_pinned_and_found_where_they_are(tmp_path: Path) -> None:
    buffer = bytearray(3 * PAGE)
    start = start_of(buffer)
    first, count = start // PAGE, (start + len(buffer) - 1) // PAGE - start // PAGE + 1
    frames = [(37 * k) % 101 + 5 for k in range(count)]
    write_pagemap(
        tmp_path / "pagemap",
        {first + k: 1 << 63 | 1 << 55 | frame for k, frame in enumerate(frames)},
    )
    pagemap = Pagemap(tmp_path / "pagemap")
    memory = pagemap.pin(memoryview(buffer))
    assert sum(extent.length for extent in memory.extents) == len(buffer)
    assert memory.extents[0].address == frames[0] * PAGE + start % PAGE
    assert [extent.address for extent in memory.extents[1:]] == [f * PAGE for f in frames[1:]]
    assert lay_out(memory.extents).pages == tuple(frame * PAGE for frame in frames)
    again = pagemap.pin(memoryview(buffer)[5:10])
    assert pinned_slots(pagemap) == 2
    memory.close()
    assert pinned_slots(pagemap) == 1
    again.close()
    assert not pinned_slots(pagemap)
    buffer.clear()
    pagemap.close()


@pytest.mark.usefixtures("pins")
def test_pages_that_the_kernel_does_not_tell_are_not_written(tmp_path: Path) -> None:
    buffer: Any = np.zeros(PAGE, np.uint8)
    first = buffer.ctypes.data // PAGE
    for entries, message in (
        ({first: 1 << 63, first + 1: 1 << 63}, "run as root"),
        ({first: 5, first + 1: 5}, "run as root"),
        ({0: 0}, "does not have all pages"),
    ):
        write_pagemap(tmp_path / "pagemap", entries)
        pagemap = Pagemap(tmp_path / "pagemap")
        with pytest.raises(TransportError, match=message):
            pagemap.pin(memoryview(buffer))
        assert not pinned_slots(pagemap)
        pagemap.close()
    with pytest.raises(TransportError, match="none cannot be opened"):
        Pagemap(tmp_path / "none")


@pytest.mark.usefixtures("pins")
def test_the_kernels_own_pagemap_answers_or_wants_root() -> None:
    pagemap = Pagemap()
    try:
        memory = pagemap.allocate(4096)
    except TransportError as error:
        assert "CAP_SYS_ADMIN" in str(error)
        return
    (extent,) = memory.extents
    assert extent.address % PAGE == 0 and extent.length == 4096 and not any(memory.view)
    memory.close()
    pagemap.close()


@pytest.mark.usefixtures("pins")
def test_more_than_a_page_in_a_row_is_a_huge_page_or_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def refuse(file: int, length: int, flags: int) -> mmap.mmap:
        asked.append((length, flags & 0x40000))
        raise OSError("no huge pages")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ResourceExhausted, match="need a huge page: reserve one in /proc/sys/vm"):
        Pagemap().allocate(PAGE + 1)
    assert asked == [(1 << 21, 0x40000)]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A file of the size of a doorbell page."""
    path = tmp_path / "page"
    path.write_bytes(bytes(regs.PAGE_SIZE))
    return path


def ends_with(file: int, name: str) -> bool:
    return os.readlink(f"/proc/self/fd/{file}").endswith(name)


def test_the_file_of_a_page_must_have_that_page_alone(
    registers: Path, udmabuf: UDmaBuf, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(text: str) -> None:
        with pytest.raises(InvalidRequest, match=f"cannot be the file of a doorbell page: {text}"):
            MappedTransport(registers, udmabuf, offset=0x2000, pages=[page])

    # Neither the registers nor any other larger file, and no device that maps any address.
    with pytest.raises(InvalidRequest, match="it has 139264 octets, not 4096"):
        MappedTransport(registers, udmabuf, offset=0x2000, pages=[registers])
    with pytest.raises(InvalidRequest, match="it has 0 octets, not 4096"):
        MappedTransport(registers, udmabuf, offset=0x2000, pages=["/dev/zero"])
    with pytest.raises(TransportError, match="none cannot be opened: No such file"):
        MappedTransport(registers, udmabuf, offset=0x2000, pages=[tmp_path / "none"])
    with pytest.raises(InvalidRequest, match="the device has 16 doorbell pages, not 17"):
        MappedTransport(registers, udmabuf, offset=0x2000, pages=[page] * 17)
    # A UIO device has one map, of the page's size and at its address.
    of: dict[int, list[UioMap]] = {}
    monkeypatch.setattr(mapped, "uio_maps", lambda file: of[0] if ends_with(file, "page") else None)
    of[0] = []
    refused("it must have one map of 4096 octets, and has none")
    of[0] = [UioMap(0x4000_0000, 1 << 17)]
    refused("it must have one map of 4096 octets, and has 131072 octets")
    of[0] = [UioMap(0x4000_1000, 4096), UioMap(0x4000_0000, 4096)]
    refused("it must have one map of 4096 octets, and has 4096 octets, 4096 octets")
    of[0] = [UioMap(0x4000_1000, 4096)]
    MappedPage(page, 0x4000_1000).close()
    with pytest.raises(InvalidRequest, match="it maps 0x40001000, and the page is at 0x40002000"):
        MappedPage(page, 0x4000_2000)
    # A kernel with larger pages would map the registers, too.
    monkeypatch.setattr(mmap, "PAGESIZE", 1 << 16)
    refused("the kernel maps 65536 octets at least, which are more than one doorbell page of 4096")


def test_a_page_is_lent_until_its_last_descriptor_and_mapping_are_gone(
    registers: Path, udmabuf: UDmaBuf, page: Path
) -> None:
    with MappedTransport(registers, udmabuf, offset=0x2000, pages=[page]) as transport:
        (file,) = transport.page_files
        for _ in range(2):
            assert not file.lent
            lent = file.lend()
            mapping = mmap.mmap(lent, 4096)
            here, there = socket.socketpair()
            with here, there:
                socket.send_fds(here, [b"-"], [lent])
                os.close(lent)
                mapping.close()
                assert file.lent, "a descriptor is on its way in a socket"
            assert not file.lent
        lent = file.lend()
        mapping = mmap.mmap(lent, 4096)
        os.close(lent)
        child = os.fork()
        if not child:
            time.sleep(0.2)
            os._exit(0)
        mapping.close()
        assert file.lent, "a child has the mapping"
        os.waitpid(child, 0)
        assert not file.lent


def apart(transport: MappedTransport) -> mmap.mmap:
    """Returns pages of which the first two are not neighbours on the bus. By chance they may be,
    and then a ring may lie in both.
    """
    kept = []
    for _ in range(100):
        kept.append(mmap.mmap(-1, 4 * PAGE))
        kept[-1][PAGE] = kept[-1][0] = 1
        memory = transport.pin(memoryview(kept[-1])[: 2 * PAGE])
        count = len(lay_out(memory.extents).pages)
        memory.close()
        if count:
            break
    return kept[-1]


def test_rings_of_a_client_lie_within_one_page_and_are_aligned(registers: Path) -> None:
    try:
        memory = Pagemap()
    except RnicError as error:
        pytest.skip(f"pages cannot be pinned here: {error}")
    with MappedTransport(registers, memory, offset=0x2000) as transport:
        for start, length in ((32, 64), (PAGE - 64, 128)):
            try:
                with pytest.raises(InvalidRequest, match="a ring must lie within one page of 4096"):
                    transport.share(memoryview(apart(transport))[start : start + length])
            except TransportError as error:
                pytest.skip(f"pages cannot be looked up here: {error}")
        transport.share(memoryview(mmap.mmap(-1, 4 * PAGE))[64:PAGE]).close()


def test_a_device_that_has_copies_shares_no_ring(registers: Path, udmabuf: UDmaBuf) -> None:
    with MappedTransport(registers, udmabuf, offset=0x2000) as transport:
        with pytest.raises(UnsupportedDevice, match="reads and writes copies of memory"):
            transport.share(memoryview(bytearray(64)))
