"""The RNIC's surroundings as a cocotb bench, for the engine and for tests that users write.

A test makes an :class:`RnicBench` around its ``dut``, starts it, then awaits ``write``, ``send``
and ``drain``. It can read host memory, events, completions and exception packets at any time.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import repeat
from typing import Any, NamedTuple

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Event, First, RisingEdge
from cocotbext.axi import (
    AxiLiteBus,
    AxiLiteMaster,
    AxiSlaveWrite,
    AxiStreamBus,
    AxiStreamFrame,
    AxiStreamSink,
    AxiStreamSource,
    AxiWriteBus,
)
from numpy.typing import NDArray

from ...hdl.spec import regs
from ...hdl.spec.completion import OCTETS, Completion, phase
from .engine import (
    BURST,
    CYCLE,
    EVENT_REGISTERS,
    PHASE,
    TAKEN,
    UNSTALLED,
    WRITE,
    Await,
    DeviceError,
    Drain,
    ErrorEvent,
    ExceptionPacket,
    Frame,
    Meanwhile,
    Operation,
    Outcome,
    Packet,
    Pause,
    Poll,
    Resume,
    Ring,
    Stalls,
    Store,
    Wait,
    WriteRegister,
    clear,
    completion,
    counter_registers,
    counters,
    event,
)

#: A run is given up after this many cycles without any transfer.
PATIENCE = 20_000
_STATUS = {field.name: 1 << field.low for field in regs.BY_NAME["STATUS"].fields}


class _HostMemory:
    """The target of bus writes: an array from address ``base``, with ranges that answer SLVERR.

    Without an array the writes are only answered.
    """

    def __init__(
        self, memory: NDArray[np.uint8] | None, faults: Sequence[range], base: int
    ) -> None:
        self._memory = memory
        self._faults = faults
        self._base = base

    async def write(self, address: int, octets: bytes) -> None:
        if _faulty(self._faults, range(address, address + len(octets))):
            raise OSError(f"bus address {address:#x} is faulty")
        if self._memory is None:
            return
        at = address - self._base
        kept = octets[: max(len(self._memory) - at, 0)] if at >= 0 else b""
        self._memory[at : at + len(kept)] = np.frombuffer(kept, np.uint8)


def _faulty(faults: Sequence[range], octets: range) -> bool:
    return any(octets.start < fault.stop and fault.start < octets.stop for fault in faults)


class _Beat(NamedTuple):
    """A beat of write data, and the bus address of its first lane; ``data`` is set only if
    asked for.
    """

    cycle: int
    address: int
    strobes: int
    last: bool
    data: bytes


class _WritePort:
    """Watches a write port."""

    def __init__(self, dut: Any, prefix: str, *, data: bool = False) -> None:
        self.bursts: list[tuple[int, int, int]] = []
        self.responses: list[int] = []
        self._octets = len(dut.m_axis_exc_tkeep)
        self._address, self._length, self._data, self._strobes, self._last = (
            getattr(dut, f"{prefix}_{name}")
            for name in ("awaddr", "awlen", "wdata", "wstrb", "wlast")
        )
        self._aw, self._w, self._b = (
            (getattr(dut, f"{prefix}_{channel}valid"), getattr(dut, f"{prefix}_{channel}ready"))
            for channel in ("aw", "w", "b")
        )
        self._with_data = data
        self._announced: deque[int] = deque()
        self._ahead: deque[tuple[int, int, bool, bytes]] = deque()

    def look(self, cycle: int) -> tuple[bool, list[_Beat]]:
        """Watches one cycle; returns whether there was a transfer, and the beats whose
        address is known now.
        """
        moved = False
        valid, ready = self._aw
        if valid.value and ready.value:
            moved = True
            address = self._address.value.to_unsigned()
            beats = self._length.value.to_unsigned() + 1
            self.bursts.append((cycle, address, beats))
            start = address & -self._octets
            self._announced.extend(range(start, start + beats * self._octets, self._octets))
        valid, ready = self._w
        if valid.value and ready.value:
            moved = True
            octets = b""
            if self._with_data:
                octets = self._data.value.to_unsigned().to_bytes(self._octets, "little")
            strobes = self._strobes.value.to_unsigned()
            self._ahead.append((cycle, strobes, bool(self._last.value), octets))
        valid, ready = self._b
        if valid.value and ready.value:
            moved = True
            self.responses.append(cycle)
        found = []
        while self._ahead and self._announced:
            when, strobes, last, octets = self._ahead.popleft()
            found.append(_Beat(when, self._announced.popleft(), strobes, last, octets))
        return moved, found


class _Host:
    """The host's side of the completion rings.

    A completion reaches memory as a whole, like a line of a cache, so that the host never sees a
    part.
    """

    def __init__(
        self, memory: NDArray[np.uint8], ring: Ring | None, faults: Sequence[range], base: int
    ) -> None:
        self.completions: list[Completion] = []
        self.delivered: list[int] = []
        self.paused = False
        self._memory = memory
        self._base = base
        self._ring = ring
        self._rings = range(len(ring.queues)) if ring is not None else range(0)
        self._faults = faults
        # For each ring: how many completions were written, taken, and given back.
        self._issued, self._taken, self._returned = ([0 for _ in self._rings] for _ in range(3))
        self._entry: dict[int, int] = {}  # octets of the completion that is being written
        self._under = 0  # its ring
        self._fault = False
        self._when: dict[tuple[int, int], int] = {}  # the cycle in which each one was written

    @property
    def owed(self) -> bool:
        """True if completions were taken, but not given back."""
        return self._taken != self._returned

    @property
    def due(self) -> bool:
        """True if a quarter of a ring is owed, so that it must be given back."""
        return self._ring is not None and any(
            4 * (self._taken[each] - self._returned[each]) >= self._ring.entries
            for each in self._rings
        )

    def give_back(self) -> Iterator[int]:
        """Yields the doorbells that give back the completions taken, and arm the queues."""
        assert self._ring is not None
        for which, queue in enumerate(self._ring.queues):
            if self._taken[which] != self._returned[which]:
                self._returned[which] = taken = self._taken[which]
                yield regs.pack("CQ_DOORBELL", consumer=taken & 0xFFFF, queue=queue, arm=1)

    @property
    def waiting(self) -> bool:
        """True if there is a completion to take."""
        return self._next() is not None

    def _next(self) -> int | None:
        """Returns a ring with a completion to take."""
        if self._ring is None or self.paused:
            return None
        for which in self._rings:
            number = self._taken[which]
            octet = int(self._memory[self._place(which, number) - self._base + PHASE.octet])
            if octet >> PHASE.bit & 1 == phase(number, self._ring.size):
                return which
        return None

    def write(self, beat: _Beat) -> None:
        """Takes a beat that the RNIC writes to a ring."""
        if self._ring is None:
            raise DeviceError(
                f"m_axi_cq_aw: a completion is written to {beat.address:#x}, but there is no ring"
            )
        if not self._entry:
            start = beat.address + (beat.strobes & -beat.strobes).bit_length() - 1
            inside = start in self._ring.octets
            before = (start - self._ring.address) // (self._ring.entries * OCTETS)
            self._under = before if inside else 0
        number = self._issued[self._under]
        where = f"m_axi_cq_w: completion {number}"
        place = self._place(self._under, number)
        for lane, octet in enumerate(beat.data):
            if not beat.strobes >> lane & 1:
                continue
            at = beat.address + lane - place
            if not 0 <= at < OCTETS or at in self._entry:
                raise DeviceError(
                    f"{where} is written to {beat.address + lane:#x}, but its entry is at"
                    f" {place:#x}"
                )
            self._entry[at] = octet
            self._fault |= _faulty(self._faults, range(place + at, place + at + 1))
        if not beat.last:
            return
        if len(self._entry) < OCTETS:
            raise DeviceError(
                f"{where} is incomplete: only the octets {[*self._entry]} are written"
            )
        if number - self._returned[self._under] >= self._ring.entries:
            raise DeviceError(f"{where} overwrites one that the host has not given back")
        if self._entry[PHASE.octet] >> PHASE.bit & 1 != phase(number, self._ring.size):
            raise DeviceError(f"{where} has the wrong phase")
        if not self._fault:
            octets = bytes(self._entry[at] for at in range(OCTETS))
            at = place - self._base
            self._memory[at : at + OCTETS] = np.frombuffer(octets, np.uint8)
            self._when[self._under, number] = beat.cycle
        self._issued[self._under] += 1
        self._entry, self._fault = {}, False

    def take(self) -> None:
        """Takes a completion."""
        which = self._next()
        assert which is not None
        number = self._taken[which]
        place = self._place(which, number) - self._base
        self.completions.append(completion(self._memory[place : place + OCTETS].tobytes()))
        self.delivered.append(self._when.pop((which, number)))
        self._taken[which] += 1

    def touches_ring(self, beat: _Beat) -> bool:
        """Returns True if a beat of the other port writes to a ring."""
        if self._ring is None:
            return False
        start = beat.address + (beat.strobes & -beat.strobes).bit_length() - 1
        stop = beat.address + beat.strobes.bit_length()
        return start < self._ring.octets.stop and self._ring.octets.start < stop

    def _place(self, which: int, number: int) -> int:
        assert self._ring is not None
        entries = self._ring.entries
        return self._ring.address + (which * entries + number % entries) * OCTETS


class RnicBench:
    """The surroundings of an RNIC.

    Parameters
    ----------
    dut
        The bench module, with the flat ports of the exported Verilog. The port for Ethernet frames
        may be absent.
    memory
        Host memory.
    ring
        The ring from which completions are taken; the test programs it. It is cleared.
    stalls
        The delays of the RNIC. The memory answers when its queue of responses allows it, so
        ``response_latency`` has no effect here.
    faults
        Bus addresses at which memory answers with SLVERR.
    base
        The bus address of memory's first octet.

    Attributes
    ----------
    events : list[ErrorEvent]
        Error events, as they were read and taken off the RNIC's queue.
    exceptions : list[ExceptionPacket]
        Packets of the exception stream.
    completions : list[Completion]
        Completions, as they were taken off the ring.
    delivered, writes, bursts, responses, taken, stray, interrupts, polled : list
        Rows of the arrays of :class:`~ddp_rnic.sim.engines.engine.Outcome`.
    """

    def __init__(
        self,
        dut: Any,
        memory: NDArray[np.uint8],
        *,
        ring: Ring | None = None,
        stalls: Stalls = UNSTALLED,
        faults: Sequence[range] = (),
        base: int = 0,
    ) -> None:
        clear(memory, ring, base)
        logging.getLogger(f"cocotb.{dut._name}").setLevel(logging.WARNING)
        self.dut = dut
        self.memory, self._base = memory, base
        self.cycle = 0
        self.events: list[ErrorEvent] = []
        self.exceptions: list[ExceptionPacket] = []
        self.writes: list[tuple[int, int]] = []
        self.taken: list[tuple[int, int]] = []
        self.stray: list[tuple[int, int]] = []
        self.interrupts: list[int] = []
        self.polled: list[int] = []
        self._progress = 0
        self._over = False
        self._aside: Any = None  # the task of a Meanwhile
        self._stalls = stalls
        # The ports for packets and for frames, or one of them.
        prefixes = [each for each in ("s_axis", "s_axis_eth") if hasattr(dut, f"{each}_tvalid")]
        sources = {
            each: AxiStreamSource(AxiStreamBus.from_prefix(dut, each), dut.clk, dut.rst)
            for each in prefixes
        }
        self._source, self._frames = sources.get("s_axis"), sources.get("s_axis_eth")
        self._inputs = [
            tuple(getattr(dut, f"{prefix}_t{name}") for name in ("valid", "ready", "last"))
            for prefix in prefixes
        ]
        self._last_used = sources[prefixes[0]]
        self._sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis_exc"), dut.clk, dut.rst)
        self._host = _Host(memory, ring, faults, base)
        self.completions, self.delivered = self._host.completions, self._host.delivered
        self._owed, self._interrupted = Event(), Event()
        # Completions are put into memory by their host, once they are whole.
        self._ports = [
            AxiSlaveWrite(
                AxiWriteBus.from_prefix(dut, prefix), dut.clk, dut.rst,
                target=_HostMemory(target, faults, base),
            )
            for prefix, target in (("m_axi", memory), ("m_axi_cq", None))
        ]  # fmt: skip
        self._placing = _WritePort(dut, "m_axi")
        self._completing = _WritePort(dut, "m_axi_cq", data=True)
        self.bursts, self.responses = self._placing.bursts, self._placing.responses
        self._control = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.rst)

    async def start(self) -> None:
        """Starts the clock and resets the RNIC."""
        dut = self.dut
        dut.rst.value = 1
        Clock(dut.clk, 10, "ns").start()
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        rng = random.Random(self._stalls.seed)
        registers = self._control.write_if, self._control.read_if
        for channel, probability in (
            (self._source, self._stalls.source),
            *((port.aw_channel, self._stalls.write) for port in self._ports),
            *((port.w_channel, self._stalls.write) for port in self._ports),
            *((port.b_channel, self._stalls.response) for port in self._ports),
            (self._sink, self._stalls.exceptions),
            (self._frames, self._stalls.source),
            *(
                (getattr(registers[0], f"{name}_channel"), self._stalls.registers)
                for name in ("aw", "w", "b")
            ),
            (registers[1].r_channel, self._stalls.registers),
        ):
            if channel is not None and probability:
                channel.set_pause_generator(self._pauses(rng, probability))
        await RisingEdge(dut.clk)
        stalled = self._stalls.completions
        cocotb.start_soon(self._watch(self._pauses(rng, stalled) if stalled else repeat(False)))
        cocotb.start_soon(self._collect_exceptions())
        cocotb.start_soon(self._answer_interrupts())
        cocotb.start_soon(self._give_back_quarters())

    async def write(self, address: int, value: int, strobes: int = 15, response: int = 0) -> None:
        """Writes the octets of a register that have a strobe; these octets are adjacent."""
        first, stop = (strobes & -strobes).bit_length() - 1, strobes.bit_length()
        octets = value.to_bytes(4, "little")[first:stop]
        answer = await self._control.write(address + first, octets)
        if answer.resp != response:
            raise DeviceError(f"the write of register {address:#05x} gave {answer.resp!r}")

    async def read(self, address: int, response: int = 0) -> int:
        """Reads a register."""
        answer = await self._control.read(address, 4)
        if answer.resp != response:
            raise DeviceError(f"the read of register {address:#05x} gave {answer.resp!r}")
        return int.from_bytes(answer.data, "little")

    async def send(self, packet: Packet | Frame) -> None:
        """Hands a packet or frame to its source, which sends it after everything handed over
        before.

        A packet for the other port therefore waits until this port has taken its own.
        """
        if isinstance(packet, Packet):
            source, tid, user, error = self._source, packet.stream, packet.sequence, 1 << 32
        else:
            source, tid, user, error = self._frames, None, 0, 1
        if source is None:
            raise ValueError("the RNIC has no port for this")
        if source is not self._last_used:
            await self.sent()
            self._last_used = source
        users = [user] * len(packet.octets)
        users[-1] |= error * packet.error
        await source.send(AxiStreamFrame(packet.octets, tid=tid, tuser=users))

    async def sent(self) -> None:
        """Waits until the RNIC has taken every packet and frame."""
        await self._last_used.wait()

    def pause(self) -> None:
        """Stops taking completions."""
        self._host.paused = True

    def resume(self) -> None:
        """Takes completions again."""
        self._host.paused = False

    async def wait(self, cycles: int) -> None:
        """Lets cycles pass."""
        end = self.cycle + cycles
        while self.cycle < end:
            await RisingEdge(self.dut.clk)
            self._progress = self.cycle

    async def completed(self, count: int) -> None:
        """Waits until ``count`` completions were taken in total."""
        while len(self.completions) < count:
            await RisingEdge(self.dut.clk)

    async def poll(self, address: int, mask: int, value: int = 0, response: int = 0) -> None:
        """Reads a register until its bits in ``mask`` have this value."""
        while await self.read(address, response) & mask != value:
            pass
        self.polled.append(self.cycle)
        self._progress = self.cycle

    async def meanwhile(self, operations: Meanwhile) -> None:
        """Writes and polls registers later, while the test continues."""

        async def go() -> None:
            await self.wait(operations.cycles)
            for operation in operations.operations:
                match operation:
                    case WriteRegister():
                        await self.write(*astuple(operation))
                    case Poll():
                        await self.poll(*astuple(operation))

        await self.done_aside()
        self._aside = cocotb.start_soon(go())

    async def done_aside(self) -> None:
        """Waits until the operations of a Meanwhile are done."""
        if self._aside is not None:
            await self._aside

    async def drain(self) -> None:
        """Waits until nothing is in flight, no event waits, and every completion is given back.

        Completions that wait while the host is paused stay.
        """
        await self.sent()
        await self.done_aside()
        while True:
            status = await self.read(regs.address("STATUS"))
            if status & _STATUS["event"]:
                self._interrupted.set()  # the interrupt may be masked
            elif not status & _STATUS["idle"] or self._host.waiting:
                pass
            elif self._host.owed:
                await self._give_back()
            else:
                break
        self._progress = self.cycle

    async def run(self, operations: Sequence[Operation]) -> None:
        """Carries operations out, resumes, and drains."""
        for operation in operations:
            if not isinstance(operation, Packet | Frame):
                await self.sent()
            match operation:
                case Packet() | Frame():
                    await self.send(operation)
                case WriteRegister():
                    await self.write(*astuple(operation))
                case Drain():
                    await self.drain()
                case Store(address, octets):
                    at = address - self._base
                    self.memory[at : at + len(octets)] = np.frombuffer(octets, np.uint8)
                case Await(completions):
                    await self.completed(completions)
                case Pause():
                    self.pause()
                case Resume():
                    self.resume()
                case Poll():
                    await self.poll(*astuple(operation))
                case Wait(cycles):
                    await self.wait(cycles)
                case Meanwhile():
                    await self.meanwhile(operation)
        self.resume()
        await self.drain()
        self._over = True

    async def outcome(self) -> Outcome:
        """Returns the outcome so far."""
        counted = {
            name: await self.read(regs.address(name))
            for name in counter_registers(sctp=self._frames is not None)
        }
        return Outcome(
            cycles=self.cycle,
            events=list(self.events),
            exceptions=list(self.exceptions),
            counters=counters(counted),
            completions=list(self.completions),
            delivered=np.array(self.delivered, CYCLE),
            writes=np.array(self.writes, WRITE),
            bursts=np.array(self.bursts, BURST),
            responses=np.array(self.responses, CYCLE),
            taken=np.array(self.taken, TAKEN),
            stray=list(np.array(self.stray, WRITE)),
            interrupts=np.array(self.interrupts, CYCLE),
            polled=np.array(self.polled, CYCLE),
        )

    async def _collect_exceptions(self) -> None:
        while True:
            frame = await self._sink.recv()
            reason, sequence = divmod(frame.tuser, 1 << 32)
            octets = bytes(frame.tdata)
            self.exceptions.append(ExceptionPacket(frame.tid, sequence, octets, reason))

    async def _answer_interrupts(self) -> None:
        dut = self.dut
        while True:
            if not dut.irq.value:
                await First(RisingEdge(dut.irq), self._interrupted.wait())
            self._interrupted.clear()
            status = await self.read(regs.address("STATUS"))
            if not status & _STATUS["event"]:
                if status & _STATUS["completion"] and dut.irq.value and self._host.owed:
                    await self._give_back()
                continue
            words = [await self.read(regs.address(name)) for name in EVENT_REGISTERS]
            self.events.append(event(words))
            await self.write(regs.address("EVENT_POP"), 1)
            self._progress = self.cycle

    async def _give_back_quarters(self) -> None:
        while True:
            await self._owed.wait()
            self._owed.clear()
            if self._host.due:
                await self._give_back()

    async def _give_back(self) -> None:
        """Writes the consumer indices."""
        for doorbell in self._host.give_back():
            await self.write(regs.address("CQ_DOORBELL"), doorbell)
            self._progress = self.cycle

    async def _watch(self, stalls: Iterator[bool]) -> None:
        """Notes the cycle of every transfer; fails when there are none for too long.

        Completions are taken, too, except in the cycles that ``stalls`` names.
        """
        dut = self.dut
        edge = RisingEdge(dut.clk)
        first = True
        interrupted = False
        while True:
            await edge
            cycle = self.cycle
            for valid, ready, last in self._inputs:
                if not (valid.value and ready.value):
                    continue
                self._progress = cycle
                if first:
                    self.taken.append((cycle, cycle))
                first = bool(last.value)
                if first:
                    self.taken[-1] = (self.taken[-1][0], cycle)
            moved, beats = self._placing.look(cycle)
            for beat in beats:
                self._placed(beat)
            moved_too, reported = self._completing.look(cycle)
            for beat in reported:
                self._host.write(beat)
            if self._over and (beats or reported):
                port = "m_axi_w" if beats else "m_axi_cq_w"
                raise DeviceError(f"{port}: data comes although STATUS said nothing is in flight")
            if moved or moved_too:
                self._progress = cycle
            if not next(stalls) and self._host.waiting:
                self._host.take()
                self._progress = cycle
                if self._host.due:
                    self._owed.set()
            if interrupted != (interrupted := bool(dut.irq.value)) and interrupted:
                self.interrupts.append(cycle)
            if cycle - self._progress > PATIENCE:
                raise DeviceError(f"cycle {cycle}: nothing moved for {PATIENCE} cycles")
            self.cycle = cycle + 1

    def _placed(self, beat: _Beat) -> None:
        if not beat.strobes:
            return
        self.writes.append((beat.cycle, beat.address))
        if self._host.touches_ring(beat):
            raise DeviceError(
                f"m_axi_w: the write in the beat at {beat.address:#x} touches the completion ring"
            )
        stop = beat.address - self._base + beat.strobes.bit_length()
        if beat.address < self._base or stop > len(self.memory):
            self.stray.append((beat.cycle, beat.address))

    def _pauses(self, rng: random.Random, probability: float) -> Iterator[bool]:
        """Yields whether a channel pauses, cycle by cycle."""
        rng = random.Random(rng.randrange(2**32))
        while True:
            pauses = rng.random() < probability
            yield from repeat(pauses, rng.randint(1, self._stalls.stretch))
