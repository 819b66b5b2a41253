"""The exported top as other flows see it: its ports, and the buses that they make up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from amaranth.lib.wiring import Out

from ..hdl.bus.axi import AWCACHE
from ..hdl.flat import FlatRnic
from ..hdl.spec.config import RnicConfig

#: The top module of the exported Verilog.
MODULE = "rnic"


@dataclass(frozen=True)
class Port:
    """A port of ``width`` bits."""

    name: str
    output: bool
    width: int


@dataclass(frozen=True)
class Bus:
    """A bus interface: ports that share a prefix.

    ``kind`` is ``AXI4Stream``, ``AXI4`` (with its write channels only) or ``AXI4-Lite``;
    ``ports`` maps the kind's own names of signals, as ``TDATA``, to the ports.
    """

    name: str
    kind: str
    master: bool
    doc: str
    ports: dict[str, Port]


#: What every description says of writes into host memory.
NOT_BUFFERABLE = f"AWCACHE is {AWCACHE:#06b}: the response must come from memory itself."

_BUSES = (
    ("s_axis", "AXI4Stream", False, "MPA FPDUs: tid is the DDP Stream, tuser see the README."),
    ("s_axis_eth", "AXI4Stream", False, "Ethernet frames without FCS; tuser: damaged."),
    ("m_axis_exc", "AXI4Stream", True, "What is the host's: FPDUs in error, and other frames."),
    ("m_axi", "AXI4", True, f"Writes payload into host memory. {NOT_BUFFERABLE}"),
    ("m_axi_cq", "AXI4", True, f"Writes the completion ring. {NOT_BUFFERABLE}"),
    ("s_axil", "AXI4-Lite", False, "Reaches the registers."),
)


def ports(config: RnicConfig) -> tuple[Port, ...]:
    """Every port of the exported Verilog, clock and reset first."""
    members = FlatRnic.ports(config)
    return (
        Port("clk", False, 1),
        Port("rst", False, 1),
        *(Port(name, member.flow == Out, member.shape) for name, member in members.items()),
    )


def buses(config: RnicConfig) -> tuple[Bus, ...]:
    """Every bus interface. Ports of none are the clock, the reset and the interrupt."""
    return tuple(_buses(config))


def _buses(config: RnicConfig) -> Iterator[Bus]:
    # A prefix may begin with another one: the longest that fits is a port's.
    prefixes = sorted((f"{name}_" for name, *_ in _BUSES), key=len, reverse=True)
    owner = {
        port: next((prefix for prefix in prefixes if port.name.startswith(prefix)), None)
        for port in ports(config)
    }
    for name, kind, master, doc in _BUSES:
        prefix = f"{name}_"
        own = {
            port.name.removeprefix(prefix).upper(): port
            for port, its in owner.items()
            if its == prefix
        }
        if own:
            yield Bus(name, kind, master, doc, own)
