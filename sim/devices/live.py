"""The gateware in this process, as a device that the driver opens; and a peer that sends to it.

Time passes in the device only during calls: a register access takes as many cycles as the bus needs
for it, and :meth:`SimTransport.wait` and :meth:`SimTransport.run` let time pass. Packets that were
sent arrive then, as fast as the device accepts them. Writes of registers and packets wait in their
order until the next such call, so that another thread can add some while the device works.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ...hdl.spec.config import RnicConfig
from ...sw_driver.base.closing import ProcessLock
from ...sw_driver.base.errors import TransportError
from ...sw_driver.transports.memory import Extent, Memory, Shared
from ...sw_driver.transports.transport import SentFpdu, Transport
from ..engines import compiled, verilator
from ..engines.engine import UNSTALLED, DeviceError, ExceptionPacket, Stalls
from ..engines.waves import Recorder, Waves, check_parts
from ..model.ddp import DataSource
from ..model.mpa import MpaSender

__all__ = ["Peer", "SimTransport"]

#: How many cycles are simulated between two checks of the real time, and in a wait of no time.
_CYCLES, _GLIMPSE = 2000, 64
#: The least bus address, so high that the upper halves of addresses are in use.
_BASE = 1 << 36
_RESPONSES = {2: "SLVERR", 3: "DECERR"}


class _Pinned(Shared):
    """Octets that bus writes may write: exactly these, and no others."""

    def __init__(self, sim: SimTransport, view: memoryview, extents: tuple[Extent, ...]) -> None:
        self.view, self.extents = view, extents
        self._sim = sim
        self._octets: Any = (ctypes.c_ubyte * len(view)).from_buffer(view)
        start = ctypes.addressof(self._octets)
        for extent in extents:
            sim.map(extent.address, start, extent.length)
            start += extent.length

    def close(self) -> None:
        for extent in self.extents:
            self._sim.map(extent.address, None, 0)
        self._octets = None
        self.view.release()


class _Packet(NamedTuple):
    """A packet or frame: the operation for the harness, and the octets."""

    operation: bytes
    octets: bytes


class SimTransport(Transport):
    """The gateware as a transport of the driver.

    A write to an octet that is not pinned, or no longer pinned, is an error of the device, and
    every call after it raises.

    Parameters
    ----------
    config
        The configuration of the gateware.
    page
        Octets of the pages over which pinned memory is scattered on the bus, a power of two from
        4096 to 2 MiB; None: memory is contiguous there.
    base
        The least bus address.
    stalls
        The delays that the surroundings cause.
    seed
        The seed of the bus addresses.
    waves
        The waveform to be written.
    probed
        True: :func:`.probe.probe` can look into the gateware, and the simulation takes twice as
        long.
    gates
        The gates to run instead of the RTL, from :func:`.gates.verilog`.
    recorded
        True: keeps what :meth:`cycles` returns, which takes more memory with each beat.
    faulty
        A library with planted faults to run instead, and the number of the active one; 0: none.
    """

    def __init__(
        self,
        config: RnicConfig | None = None,
        *,
        page: int | None = None,
        base: int = _BASE,
        stalls: Stalls = UNSTALLED,
        seed: int = 1,
        waves: Waves | None = None,
        probed: bool = False,
        gates: str | None = None,
        recorded: bool = False,
        faulty: tuple[Path, int] | None = None,
    ) -> None:
        if page is not None and (not 4096 <= page <= 1 << 21 or page & (page - 1)):
            raise ValueError(f"page must be a power of two from 4096 to 2 MiB, not {page!r}")
        self.config = config or RnicConfig()
        self._page, self._random = page, random.Random(seed)
        self._next = base
        self._lock = ProcessLock("the simulated device")
        #: What waits for the device: writes of registers, each an address and a value, and packets.
        self._posted: deque[tuple[int, int] | _Packet] = deque()
        self._woken = threading.Event()
        self.carries = self.config.transmit
        self._gates, self._probed = gates, probed or waves is not None
        settings = compiled.settings_of(self.config, stalls)
        if faulty is None:
            built = compiled.build(self.config, gates=gates, waves=self._probed)
        else:
            built, settings["mutant"] = faulty
        self._library = compiled.open_library(built)
        self._recorder: Recorder | None = None
        self._sim: Any = self._library.sim_live(settings.ctypes.data, recorded)
        if waves is not None:
            self.show(waves)

    # -- the driver's interface -------------------------------------------------------------------

    def read(self, address: int) -> int:
        return self._access(address, None)

    def write(self, address: int, value: int) -> None:
        self._access(address, value)

    def write_all(self, writes: Sequence[tuple[int, int]]) -> None:
        self._lock.check()
        self._open()
        self._posted.extend(writes)

    def _caught_up(self) -> Any:
        """Returns the simulation, after the device got all that waits for it now."""
        sim = self._open()
        writes: list[tuple[int, int]] = []
        for _ in range(len(self._posted)):  # another thread may add more all the time
            match self._posted.popleft():
                case _Packet(operation, octets):
                    self._write_through(sim, writes)
                    self._library.sim_add(sim, operation, 1, octets, len(octets), False)
                case write:
                    writes.append(write)
        self._write_through(sim, writes)
        return sim

    def _write_through(self, sim: Any, writes: list[tuple[int, int]]) -> None:
        """Makes writes of registers, and empties the list."""
        if writes:
            words = struct.pack(f"={2 * len(writes)}I", *chain.from_iterable(writes))
            done = self._library.sim_writes(sim, words, len(writes))
            refused = writes[done : done + 1]
            writes.clear()
            for write in refused:
                self._at_bus(sim, *write)  # fails again, and raises

    def _access(self, address: int, value: int | None) -> int:
        with self._lock:
            return self._at_bus(self._caught_up(), address, value)

    def _at_bus(self, sim: Any, address: int, value: int | None) -> int:
        """Writes a register, or reads it if the value is None; returns its value."""
        word = ctypes.c_uint32(value or 0)
        response = self._library.sim_access(sim, value is not None, address, ctypes.byref(word))
        if response:
            self._check()
            what = "read" if value is None else "write"
            raise TransportError(
                f"the {what} of register {address:#05x} was answered with {_RESPONSES[response]}:"
                " the device has no such register, or the register cannot be written"
            )
        return word.value

    def pin(self, view: memoryview) -> Memory:
        offset = self._random.randrange(4096)
        if self._page is None:  # aligned to nothing that is larger than a page of the host
            return self._pin(view, -(-(offset + len(view)) // 4096) * 4096, offset, 4096)
        return self._pin(view, self._page, offset, self._page)

    def share(self, view: memoryview) -> Memory:
        size = 1 << (len(view) - 1).bit_length()
        return self._pin(view, size, 0, size)

    def allocate(self, octets: int) -> Memory:
        return self.share(memoryview(bytearray(octets)))

    def _pin(self, view: memoryview, size: int, offset: int, align: int) -> Memory:
        """Pins octets in pages of ``size`` octets at multiples of ``align``, from an offset in the
        first one on.
        """
        with self._lock:
            self._open()
            # A bus address is never used again, so that late writes are noticed. A page is left out
            # between any two pages.
            self._next += -self._next % align
            count = -(-(offset + len(view)) // size)
            pages = [self._next + 2 * k * size for k in range(count)]
            self._next += 2 * count * size
            self._random.shuffle(pages)
            extents, left = [], len(view)
            for address in pages:
                extents.append(Extent(address + offset, min(left, size - offset)))
                left -= extents[-1].length
                offset = 0
        return _Pinned(self, view, tuple(extents))

    def map(self, address: int, octets: int | None, length: int) -> None:
        """Directs bus writes in a range to memory at ``octets``; None: the range has no
        memory any more.
        """
        with self._lock:
            if self._sim is not None:
                self._library.sim_map(self._sim, address, octets, length)

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                sim, library = self._caught_up(), self._library
                for _ in range(_CYCLES // _GLIMPSE):
                    interrupt = library.sim_wait(sim, _GLIMPSE)
                    busy = timeout or library.sim_sending(sim) or library.sim_leaving(sim)
                    if interrupt or not busy:
                        break
                self._check()
            if interrupt or self._woken.is_set() or time.monotonic() >= deadline:
                self._woken.clear()
                return

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        with self._lock:
            if self._sim is not None:
                try:
                    self.show(None)
                finally:
                    self._library.sim_free(self._sim)
                    self._sim = None

    # -- the simulation ---------------------------------------------------------------------------

    @property
    def cycle(self) -> int:
        """The number of cycles since the beginning."""
        with self._lock:
            return self._library.sim_cycle(self._caught_up())

    def send(self, stream: int, sequence: int, octets: bytes, *, error: bool = False) -> None:
        """Queues a packet of whole FPDUs after those in flight; only for a device that receives
        over MPA.
        """
        if not (self.config.receive and self.config.mpa):
            raise ValueError("a packet needs a configuration with mpa and receive")
        if not octets:
            raise ValueError("a packet must have at least one octet")
        self._send((compiled.PACKET, stream, sequence, int(error), 0, len(octets)), octets)

    def send_frame(self, octets: bytes, *, error: bool = False) -> None:
        """Queues an Ethernet frame without FCS after those in flight; only for a device that
        receives over SCTP.
        """
        if not self.config.owned:
            raise ValueError("a frame needs a configuration with sctp and receive")
        if not octets:
            raise ValueError("a frame must have at least one octet")
        self._send((compiled.FRAME, 0, 0, int(error), 0, len(octets)), octets)

    def _send(self, operation: tuple[int, ...], octets: bytes) -> None:
        self._lock.check()
        self._open()
        self._posted.append(_Packet(compiled.ROW.pack(*operation), octets))

    def sent(self) -> list[SentFpdu]:
        return self._left(compiled.FPDUS)

    def sent_frames(self) -> list[SentFpdu]:
        return self._left(compiled.FRAMES)

    def _left(self, port: int) -> list[SentFpdu]:
        with self._lock:
            count = self._library.sim_left(self._caught_up(), port)
            if not count:
                return []
            packets = compiled.left(self._library, self._sim, port)[:count]
            self._library.sim_forget(self._sim, port, count)
        return [SentFpdu(each.stream, each.sequence, each.octets, each.record) for each in packets]

    @property
    def sending(self) -> int:
        """The number of packets and frames that the device has not completely taken yet."""
        with self._lock:
            return int(self._library.sim_sending(self._caught_up()))

    def cycles(self) -> dict[str, NDArray]:
        """Returns the activity of bus and streams so far with its cycles, by the names of an
        :class:`~..engines.engine.Outcome`. Only for a simulation that is ``recorded``.
        """
        with self._lock:
            return compiled.cycles(self._library, self._caught_up())

    def run(self, cycles: int) -> None:
        """Lets ``cycles`` cycles pass."""
        with self._lock:
            self._library.sim_run(self._caught_up(), cycles)
            self._check()

    @property
    def verilog(self) -> str:
        """The text of the gateware that is simulated."""
        return self._gates or verilator.verilog(self.config)

    def show(self, waves: Waves | None) -> None:
        """Completes the waveform that is being written, if there is one, and begins another one.

        Raises
        ------
        ValueError
            The gateware has no such part, or the transport is not ``probed``.
        ToolError
            The waveform could not be written.
        """
        with self._lock:
            sim, before = self._open(), self._recorder
            if waves is not None:
                if not self._probed:
                    raise ValueError("make the SimTransport with probed=True, so that it has waves")
                check_parts(waves.parts, self.verilog)
            if before is not None:
                self._recorder = None
                self._library.sim_trace(sim, None)
                before.close()
            if waves is not None:
                self._recorder = Recorder(waves.path, self.verilog)
                self._library.sim_trace(sim, compiled.traced(waves, self._recorder))

    def exceptions(self) -> list[ExceptionPacket]:
        """Returns the packets of the exception stream so far."""
        with self._lock:
            return compiled.exceptions(self._library, self._caught_up())

    def take_exceptions(self) -> list[ExceptionPacket]:
        """Returns the packets of the exception stream since the last such call, and drops them.

        Not for a simulation that is ``recorded``.
        """
        with self._lock:
            packets = compiled.exceptions(self._library, self._caught_up())
            self._library.sim_forget_cycles(self._sim)
        return packets

    def fault(self, addresses: range) -> None:
        """Makes memory answer with SLVERR at these addresses from now on."""
        with self._lock:
            self._library.sim_fault(self._open(), addresses.start, addresses.stop)

    def _open(self) -> Any:
        if self._sim is None:
            raise TransportError("the simulation is closed")
        return self._sim

    def _check(self) -> None:
        if message := self._library.sim_message(self._sim).decode():
            cycle = self._library.sim_cycle(self._sim)
            broken = DeviceError(f"cycle {cycle}: {message}")
            raise TransportError(f"the simulated device is broken: {broken}") from broken


class Peer:
    """The other end of a stream: sends DDP messages over MPA.

    Parameters
    ----------
    sim, stream
        The device, and the stream's number there.
    mulpdu
        Octets of the longest DDP Segment.
    crc, markers
        The settings that MPA's start-up agreed on.
    """

    def __init__(
        self,
        sim: SimTransport,
        stream: int,
        *,
        mulpdu: int = 1440,
        crc: bool = True,
        markers: bool = False,
    ) -> None:
        self.sim, self.stream = sim, stream
        self.source = DataSource(mulpdu)
        self._sender = MpaSender(crc=crc, markers=markers)

    def write(self, stag: int, to: int, message: bytes, *, rsvdulp: int = 0) -> None:
        """Sends a Tagged Message."""
        self.segments(*self.source.tagged(stag, to, message, rsvdulp=rsvdulp))

    def send(self, message: bytes, qn: int = 0, *, rsvdulp: int = 0) -> None:
        """Sends an Untagged Message."""
        self.segments(*self.source.untagged(qn, message, rsvdulp=rsvdulp))

    def segments(self, *segments: bytes) -> None:
        """Sends DDP Segments unchanged, each in a packet."""
        for segment in segments:
            position = self._sender.position
            self.sim.send(self.stream, position % 2**32, self._sender.send(segment))
