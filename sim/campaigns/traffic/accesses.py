"""Draws accesses to registers, and reads counters."""

from __future__ import annotations

from ....hdl.spec import commands, regs
from ...capture.streams import QUEUES
from ...engines.engine import (
    Poll,
    Wait,
    WriteRegister,
)
from .regions import Regions
from .scene import HALF, Scene

__all__ = ["Accesses"]

#: Responses of the registers' bus to refused accesses: SLVERR, DECERR.
_READ_ONLY, _NO_REGISTER = 2, 3
#: Windows of registers that hold the arguments of commands.
_WINDOWS = ("STAG", "PAGE", "STREAM", "QUEUE", "BUFFER")
#: Registers whose value only the RNIC or its engine knows.
_UNKNOWN = ("STATUS", "CQ_DOORBELL", "CQ_PRODUCER", "CQ_STATE", "CQ_PENDING")


class Accesses:
    """Draws accesses to registers that have no effect, or whose effect is known."""

    def __init__(self, scene: Scene, regions: Regions) -> None:
        self._regions = regions
        self._config, self._rng, self._host = scene.config, scene.rng, scene.host
        self._golden, self._numbers = scene.golden, scene.numbers
        self._latched = HALF if scene.config.full_counters else 0

    def known(self) -> dict[str, int]:
        """Returns the registers with known values, and these."""
        config = self._config
        known = {
            "ID": regs.ID, "VERSION": regs.VERSION, "CAP_WIDTH": config.width,
            "CAP_STAGS": config.stags, "CAP_STREAMS": config.streams,
            "CAP_BUFFER": config.buffer_octets, "CAP_PAGES": config.pages,
            "CAP_QUEUE": config.queue_depth, "CAP_BUFFERS": config.buffers,
            "CAP_CQS": config.completion_queues, "CAP_DOORBELLS": regs.PAGES,
            "CAP_ADDRESS": config.address,
        }  # fmt: skip
        for each in self._there():
            if each.access != "ro" and each.name not in _UNKNOWN:
                known[each.name] = self._host.holds(each.name) if each.access == "rw" else 0
        return known

    def scribble(self) -> None:
        """Writes any values to the registers that keep them, without a command."""
        for each in self._there():
            if each.access == "rw" and each.name not in _UNKNOWN:
                value = self._rng.getrandbits(32)
                if each.name == "IRQ_MASK":  # its masks stay
                    masks = regs.pack("IRQ_MASK", event=1, completion=1)
                    value = value & ~masks | self._host.holds(each.name) & masks
                self._host.carry_out((commands.Write(each.name, value),))
        # A doorbell of a queue that does not exist, while the engine rings none.
        self._host.drain()
        value = self._rng.getrandbits(32) | regs.pack("CQ_DOORBELL", queue=0xFF)
        self._host.carry_out((commands.Write("CQ_DOORBELL", value),))
        self._host.read("CQ_DOORBELL", value)

    def _there(self) -> list[regs.Register]:
        """Returns the registers that the RNIC has."""
        return regs.registers_of(self._config)

    def make(self) -> None:
        """Reads registers with known values, writes single octets, and makes accesses that
        are refused.
        """
        rng, host = self._rng, self._host
        known, there = self.known(), self._there()
        kept = [
            each.name
            for each in there
            if each.access == "rw" and each.name.partition("_")[0] in (*_WINDOWS, "SCRATCH")
        ]
        addresses = {each.address for each in there}
        for _ in range(rng.randint(1, 6)):
            kind = rng.randrange(5)
            if kind == 0:
                name = rng.choice([*known])
                host.read(name, known[name])
            elif kind == 1:
                first = rng.randrange(4)
                name, strobes = rng.choice(kept), 15 << first & 15 >> rng.randrange(4 - first)
                host.write_octets(name, rng.getrandbits(32), strobes)
                host.read(name, host.holds(name))
                known[name] = host.holds(name)
            elif kind == 2:
                known |= self._arguments()
            elif kind == 3:
                name = rng.choice([each.name for each in there if each.access == "ro"])
                value = rng.getrandbits(32)
                host.refused(WriteRegister(regs.address(name), value, response=_READ_ONLY))
            else:
                address = rng.choice([*addresses]) ^ rng.choice([1 << bit for bit in range(2, 12)])
                if address in addresses:
                    continue
                value = rng.getrandbits(32)
                host.refused(
                    rng.choice((
                        WriteRegister(address, value, response=_NO_REGISTER),
                        Poll(address, 0, response=_NO_REGISTER),
                    ))
                )  # fmt: skip

    def _arguments(self) -> dict[str, int]:
        """Writes the arguments of a command for an entry that is in use, but not the command.
        Returns the values of these registers.
        """
        rng, host, config = self._rng, self._host, self._config
        window = rng.choice(_WINDOWS)
        entries = {
            "STAG_INDEX": rng.choice([*self._regions.registered]),
            "PAGE_INDEX": rng.randrange(config.pages),
            "STREAM_INDEX": rng.choice(self._numbers),
            "QUEUE_STREAM": rng.choice(self._numbers),
            "QUEUE_NUMBER": rng.randrange(QUEUES),
        }
        written = {}
        for each in self._there():
            if each.access == "rw" and each.name.partition("_")[0] == window:
                value = entries.get(each.name, rng.getrandbits(32))
                host.write_octets(each.name, value, 15)
                written[each.name] = value
        return written

    def count(self) -> None:
        """Reads all counters of the idle RNIC, which writes nothing for some time."""
        rng, host = self._rng, self._host
        host.resume()
        host.drain()
        host.operations.append(Wait(40))
        counters = self._golden.counters()
        for name in regs.COUNTERS:
            whole, _, half = name.rpartition("_")
            shift = 32 if half == "HI" else 0
            value = counters[whole] if half in ("LO", "HI") else counters[name]
            if half == "LO":  # the upper half is that of the last read of the lower one
                host.read(f"{whole}_HI", self._latched)
                self._latched = value >> 32
            host.read(name, value >> shift & HALF)
        number = rng.choice(self._numbers)
        queue = host.bound.get(number, 0)
        host.carry_out([commands.Write("CQ_INDEX", queue)])
        delivered = [host.bound.get(each.completion.stream, 0) for each in self._golden.deliveries]
        host.read("CQ_PRODUCER", delivered.count(queue) & 0xFFFF)
