"""Memory that a device writes by its physical addresses: the kernel cannot move it.

The kernel's own calls are the judge here. An unprivileged process, which shares the memory as a
client of the manager does, asks the kernel to collapse, page out and move its pages;
/proc/self/pagemap shows where they are before and after.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ddp_rnic.cli.app import app
from ddp_rnic.hdl.spec import regs
from ddp_rnic.sw_driver import PD, Device, InvalidRequest, ResourceExhausted, TransportError
from ddp_rnic.sw_driver.prm import Policy, connect, protocol
from ddp_rnic.sw_driver.prm.client import ClientContext
from ddp_rnic.sw_driver.tests.managed import served
from ddp_rnic.sw_driver.tests.test_open import Constants
from ddp_rnic.sw_driver.transports import pins as module
from ddp_rnic.sw_driver.transports.mapped import MappedTransport, Pagemap
from ddp_rnic.sw_driver.transports.memory import Extent, finish
from ddp_rnic.sw_driver.transports.pins import Pins
from typer.testing import CliRunner

PAGE, HUGE = mmap.PAGESIZE, 1 << 21
OCTETS = 2 * HUGE
NOBODY = 65534

#: A program that maps the memory of descriptors at multiples of 2 MiB, gives up all rights, and
#: tries to move the pages.
ATTACKER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] + [ctypes.c_int] * 3, ctypes.c_long]
octets, huge = int(sys.argv[1]), 1 << 21
starts = []
for descriptor in map(int, sys.argv[2:]):
    room = libc.mmap(None, octets + huge, 0, 0x22, -1, 0)  # private and anonymous
    starts.append(libc.mmap(-(-room // huge) * huge, octets, 3, 0x11, descriptor, 0))  # fixed
    assert starts[-1] % huge == 0
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print("mapped", flush=True)
for line in sys.stdin:
    start = starts[int(line)]
    ctypes.memset(start, 7, octets)
    results = []
    for advice in (25, 21, 25):  # MADV_COLLAPSE, MADV_PAGEOUT
        for at in range(0, octets, huge):
            failed = libc.madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(huge), advice)
            results.append(ctypes.get_errno() if failed else 0)
    pages = (ctypes.c_void_p * 512)(*range(start, start + huge, 4096))
    nodes, status = (ctypes.c_int * 512)(), (ctypes.c_int * 512)()
    libc.syscall(279, 0, 512, pages, nodes, status, 2)  # move_pages on x86-64, MPOL_MF_MOVE
    print(*results, flush=True)
"""


def sealed() -> int:
    descriptor = os.memfd_create("shared", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, OCTETS)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def address_of(buffer: object) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(buffer))  # type: ignore[arg-type]


def frames(buffer: object, octets: int) -> list[int]:
    """Returns the physical page of each page of a buffer; 0 for a page that is not in memory."""
    start = address_of(buffer)
    ctypes.string_at(start, octets)
    with open("/proc/self/pagemap", "rb") as pagemap:
        pagemap.seek(start // PAGE * 8)
        entries = struct.iter_unpack("=Q", pagemap.read(octets // PAGE * 8))
        return [entry & (1 << 55) - 1 if entry >> 63 else 0 for (entry,) in entries]


def pages_of(extents: tuple[Extent, ...]) -> list[int]:
    return [
        page
        for start, length in extents
        for page in range(start // PAGE, (start + length - 1) // PAGE + 1)
    ]


@pytest.fixture
def root() -> None:
    if os.geteuid() or not hasattr(os, "memfd_create"):
        pytest.skip("only root can see where pages are, and become another user")


@contextmanager
def attacker(*descriptors: int) -> Iterator[subprocess.Popen[str]]:
    """Starts a process without rights that has mapped the memory of these descriptors."""
    command = [sys.executable, "-I", "-c", ATTACKER, str(OCTETS), *map(str, descriptors)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, pass_fds=descriptors
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "mapped\n"
            yield process
        finally:
            process.kill()


def attack(process: subprocess.Popen[str], which: int) -> list[str]:
    """Makes the process try to move one descriptor's memory; returns the kernel's answers."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{which}\n")
    process.stdin.flush()
    return [errno.errorcode.get(int(code), "done") for code in process.stdout.readline().split()]


def control(process: subprocess.Popen[str], descriptor: int) -> None:
    """Skips the test where the kernel does not move even memory that is not pinned."""
    with mmap.mmap(descriptor, OCTETS) as mapped:
        mapped[:] = bytes(OCTETS)
        before = frames(mapped, OCTETS)
        answers = attack(process, 1)
        if frames(mapped, OCTETS) == before:
            pytest.skip(f"the kernel does not move even memory that is not pinned: {answers}")


def constants(path: Path) -> Path:
    """Writes the registers of a device that does nothing, to a file."""
    octets = bytearray(1 << regs.ADDRESS_BITS)
    values = Constants().values | {regs.address("STATUS"): regs.pack("STATUS", idle=1)}
    for address, value in values.items():
        octets[address : address + 4] = struct.pack("<I", value)
    path.write_bytes(octets)
    return path


@pytest.mark.usefixtures("root", "pins")
def test_a_client_cannot_have_the_kernel_move_what_the_device_writes(tmp_path: Path) -> None:
    transport = MappedTransport(constants(tmp_path / "registers"), Pagemap())
    passed, unpinned = sealed(), sealed()
    with attacker(passed, unpinned) as process, transport, Device(transport).open() as context:
        control(process, unpinned)
        with served(context, tmp_path / "rnic.sock", Policy()) as prm:
            with connect(prm.path) as client:
                assert isinstance(client, ClientContext)
                answer = client.link.ask(protocol.Memory(), passed).result()
                (memory,) = protocol.HANDLE.unpack(answer)
                domain = client.make(protocol.Domain())
                wanted = 200 * PAGE
                client.ask(protocol.Region(domain, memory, HUGE, wanted, 3, 0, 0))
                (region,) = context.regions
                told = pages_of(region.mapping.memory.extents)
                assert told == frames(region.mapping.memory.view, wanted)
                answers = attack(process, 0)
                assert frames(region.mapping.memory.view, wanted) == told
                # The half with the region could not be collapsed, and the other half could.
                assert answers[0] == "done" and answers[1] != "done", answers
                region.mapping.memory.view[0] = 9
    os.close(passed)
    os.close(unpinned)


@pytest.mark.usefixtures("root", "pins")
def test_a_program_without_the_manager_cannot_lose_its_pages_either() -> None:
    pagemap = Pagemap()
    passed, unpinned = sealed(), sealed()
    with attacker(passed, unpinned) as process:
        control(process, unpinned)
        mapped = mmap.mmap(passed, OCTETS)
        mapped[:] = bytes(OCTETS)
        memory = pagemap.pin(memoryview(mapped))
        told = pages_of(memory.extents)
        assert told == frames(mapped, OCTETS)
        assert "done" not in attack(process, 0)[:2]
        assert frames(mapped, OCTETS) == told
        memory.close()
        # Once the device writes there no more, the kernel may move the pages.
        attack(process, 0)
        assert frames(mapped, OCTETS) != told
        mapped.close()
    pagemap.close()
    os.close(passed)
    os.close(unpinned)


@pytest.mark.usefixtures("root", "pins")
def test_private_memory_stays_in_its_place_when_the_program_forks() -> None:
    pagemap = Pagemap()
    buffer = mmap.mmap(-1, 16 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    buffer[:] = bytes(16 * PAGE)
    memory = pagemap.pin(memoryview(buffer))
    told = pages_of(memory.extents)
    ends, end = os.pipe()
    forked = os.fork()
    if not forked:
        os.close(end)
        os.read(ends, 1)
        os._exit(0)
    buffer[:] = b"p" * 16 * PAGE  # without the pin, this write would get pages of its own
    assert frames(buffer, 16 * PAGE) == told
    os.close(end)
    os.close(ends)
    os.waitpid(forked, 0)
    memory.close()
    pagemap.close()


def pinned_kib() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = [each for each in status if each.startswith("VmPin")]
    return int(line.split()[1])


def test_what_is_unpinned_is_the_kernels_again(pins: Pins) -> None:
    before = pinned_kib()
    buffer = mmap.mmap(-1, 3 * module.PIECE)
    start = address_of(buffer)
    for _ in range(3):
        slots = [pins.pin(start + k * module.PIECE, module.PIECE) for k in range(3)]
        assert pinned_kib() - before == 3 * module.PIECE // 1024
        pins.unpin(slots)
        assert pinned_kib() == before
    buffer.close()


def test_closed_pins_are_left_alone(pins: Pins, tmp_path: Path) -> None:
    """Another file may have the number of the descriptor that was closed."""
    buffer = mmap.mmap(-1, PAGE)
    slot, ring = pins.pin(address_of(buffer), PAGE), pins._ring
    pins.unpin([slot])  # the kernel would unpin it some time after the close, in another test
    pins.close()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    if file != ring:
        os.dup2(file, ring)
        os.close(file)
    pins.unpin([slot])
    with pytest.raises(TransportError, match="the transport is closed"):
        pins.pin(address_of(buffer), PAGE)
    pins.close()
    os.close(ring)


@pytest.mark.usefixtures("pins")
def test_a_closed_pagemap_is_not_read() -> None:
    pagemap, buffer = Pagemap(), mmap.mmap(-1, PAGE)
    pagemap.close()
    for call in (pagemap.pin, pagemap.share):
        with pytest.raises(TransportError, match="the transport is closed"):
            call(memoryview(buffer))
    with pytest.raises(TransportError, match="the transport is closed"):
        pagemap.places(address_of(buffer), PAGE)


@pytest.mark.usefixtures("root", "pins")
def test_a_large_buffer_is_unpinned_in_steps() -> None:
    before, pagemap = pinned_kib(), Pagemap()
    memory = finish(pagemap.pinning(memoryview(mmap.mmap(-1, 3 * module.PIECE))))
    left = [pinned_kib() - before for _ in memory.closing()]
    assert left == [2 * module.PIECE // 1024, module.PIECE // 1024, 0]
    memory.close()
    pagemap.close()


def test_a_file_on_a_disk_is_not_pinned_and_that_is_reported(pins: Pins, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(PAGE)
        with mmap.mmap(file.fileno(), PAGE) as mapped:
            try:
                pins.pin(address_of(mapped), PAGE)
            except InvalidRequest as error:
                assert "not the mapping of a file on a disk: copy the octets" in str(error)
            else:
                pytest.skip("the folder for temporary files is in memory")
    with pytest.raises(InvalidRequest, match="must be memory that the kernel can pin"):
        pins.pin(PAGE, PAGE)


def test_more_than_the_kernel_lets_a_program_pin_is_reported(
    pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(pins, "_ask", refuse)
        with pytest.raises(ResourceExhausted, match="cannot be pinned .*: raise the limit, 'ulim"):
            pins.pin(PAGE, PAGE)
    monkeypatch.setattr(pins, "_free", [])
    with pytest.raises(ResourceExhausted, match="all 16384 slots for pinned memory are in use"):
        pins.pin(PAGE, PAGE)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EINVAL])
def test_a_mapped_device_is_refused_where_memory_cannot_be_pinned(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Pins, "_ask", refuse)
    with pytest.raises(TransportError, match="must be pinned, and the kernel does not let"):
        Pagemap()
    registers = constants(tmp_path / "registers")
    result = CliRunner().invoke(app, ["prm", f"mapped:{registers}"])
    assert result.exit_code == 1, result.stderr
    assert result.stderr.startswith("rnic: memory whose physical addresses a device writes must")
    assert os.strerror(code) in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.usefixtures("root", "pins")
def test_a_region_of_a_mapped_device_is_pinned_until_it_is_revoked(tmp_path: Path) -> None:
    before = pinned_kib()
    transport = MappedTransport(constants(tmp_path / "registers"), Pagemap())
    with transport, Device(transport).open() as context:
        ring = pinned_kib()
        assert ring > before
        with PD(context) as pd, pd.register(mmap.mmap(-1, PAGE)):
            assert pinned_kib() == ring + PAGE // 1024
        assert pinned_kib() == ring
    assert pinned_kib() == before
