"""Makes a virtual board for a simulator: the board's top, with its pins as ports.

The top is the same that is built for the board. The platform replaces the cells that no simulator
has: the DDR cells, and the PLL, whose clocks come from outside.
"""

from amaranth import *
from amaranth.build import Subsignal
from amaranth.hdl import Fragment
from amaranth.lib import io

from ..hdl.lib.verilog import convert
from .common import Top

__all__ = ["VirtualPlatform", "to_verilog"]


class _DdrInput(Elaboratable):
    """Models the ECP5's IDDRX1F: outputs the values at the last rising edge and at the falling edge
    after it, one cycle later.
    """

    def __init__(self, buffer):
        self.buffer = buffer

    def elaborate(self, platform):
        m = Module()
        buffer = self.buffer
        m.domains.fall = ClockDomain(clk_edge="neg", reset_less=True, local=True)
        m.d.comb += ClockSignal("fall").eq(ClockSignal(buffer.i_domain))
        rise, fall = (Signal(len(buffer.port), reset_less=True) for _ in range(2))
        outs = [Signal(len(buffer.port), reset_less=True) for _ in range(2)]
        invert = sum(bit << number for number, bit in enumerate(buffer.port.invert))
        m.d[buffer.i_domain] += [rise.eq(buffer.port.i), outs[0].eq(rise), outs[1].eq(fall)]
        m.d.fall += fall.eq(buffer.port.i)
        m.d.comb += [buffer.i[0].eq(outs[0] ^ invert), buffer.i[1].eq(outs[1] ^ invert)]
        return m


class _DdrOutput(Elaboratable):
    """Models the ECP5's ODDRX1F: one value while the clock is high, the other while it is low."""

    def __init__(self, buffer):
        self.buffer = buffer

    def elaborate(self, platform):
        m = Module()
        buffer = self.buffer
        high, low = (Signal(len(buffer.port), reset_less=True) for _ in range(2))
        invert = sum(bit << number for number, bit in enumerate(buffer.port.invert))
        m.d[buffer.o_domain] += [high.eq(buffer.o[0]), low.eq(buffer.o[1])]
        m.d.comb += buffer.port.o.eq(Mux(ClockSignal(buffer.o_domain), high, low) ^ invert)
        return m


class _Ports:
    """Holds the ports of a resource that has several."""


class VirtualPlatform:
    """Gives a top ports that a simulator drives, for the resources of a real platform.

    The ports have the names of their resource and its part. The PLL has the ports ``clk``, which is
    its other clock, ``clk_main``, and ``rst``, which is high while it is not locked.
    """

    def __init__(self, real):
        self.resources = real.resources
        self.default_clk = real.default_clk
        self.default_clk_frequency = real.default_clk_frequency
        self.default_rst = real.default_rst
        #: The ports for ``verilog.convert``, which finds their directions.
        self.ports = {}

    def request(self, name, number=0, *, dir=None):
        resource = self.resources[name, number]
        label = {self.default_clk: "source", self.default_rst: "button"}.get(
            name, f"{name}{number}" if ("led" in name) else name)
        return self._port(label, resource)

    def _port(self, label, node):
        if isinstance(node.ios[0], Subsignal):
            ports = _Ports()
            for part in node.ios:
                setattr(ports, part.name, self._port(f"{label}_{part.name}", part))
            return ports
        pins = node.ios[0]
        direction = {"i": "i", "o": "o", "oe": "o"}.get(pins.dir, "io")
        width = len(getattr(pins, "names", None) or pins.p.names)
        port = io.SimulationPort(direction, width, invert=pins.invert, name=label)
        if direction != "o":
            self.ports[label] = port.i, None
        if direction != "i":
            self.ports[label if direction == "o" else f"{label}_o"] = port.o, None
        if direction == "io":
            self.ports[f"{label}_oe"] = port.oe, None
        return port

    def add_clock_constraint(self, clock, frequency):
        """Ignores the constraint: the simulation decides the frequency of clocks."""

    def get_io_buffer(self, buffer):
        if not isinstance(buffer, io.DDRBuffer):
            return buffer.elaborate(None)
        return (_DdrInput if buffer.direction is io.Direction.Input else _DdrOutput)(buffer)

    def get_pll(self, pll):
        m = Module()
        main, other, reset = Signal(name="clk_main"), Signal(name="clk"), Signal(name="rst")
        self.ports |= {
            signal.name: (signal, None) for signal in (main, other, reset)}
        m.d.comb += [
            pll.main.eq(main), pll.other.eq(other), pll.locked.eq(~reset & ~pll.reset)]
        return m


def to_verilog(board, name="rnic"):
    """Returns a board's top as Verilog text, with its pins as ports."""
    platform = VirtualPlatform(board.platform())
    fragment = Fragment.get(Top(board), platform)
    return convert(fragment, name=name, ports=platform.ports)
