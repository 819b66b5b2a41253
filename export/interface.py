"""Describes the exported top for other tools: its ports, and the buses that they form."""

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

    ``kind`` is ``AXI4Stream``, ``AXI4`` or ``AXI4-Lite``. ``ports`` maps the standard's names of
    signals, such as ``TDATA``, to the ports. An ``AXI4`` bus has the channels that the device uses,
    those of reads, of writes, or both; all its IDs have the same width.
    """

    name: str
    kind: str
    master: bool
    doc: str
    ports: dict[str, Port]


#: A sentence about writes into host memory, for every description.
NOT_BUFFERABLE = f"AWCACHE is {AWCACHE:#06b}: the response must come from memory itself."

_BUSES = (
    ("s_axis", "AXI4Stream", False, "MPA FPDUs: tid is the DDP Stream, tuser the position."),
    ("s_axis_eth", "AXI4Stream", False, "Ethernet frames without FCS; tuser: damaged."),
    ("m_axis_exc", "AXI4Stream", True, "Packets for the host: FPDUs in error, and other frames."),
    ("m_axis", "AXI4Stream", True, "FPDUs to send, one in each packet, with records in tuser."),
    ("m_axis_eth", "AXI4Stream", True, "Ethernet frames to send without FCS; tuser: as m_axis."),
    ("m_axi", "AXI4", True, "Reaches host memory for payload."),
    ("m_axi_cq", "AXI4", True, "Writes the completion ring."),
    ("s_axil", "AXI4-Lite", False, "Reaches the registers."),
)


def ports(config: RnicConfig) -> tuple[Port, ...]:
    """Returns every port of the exported Verilog, clock and reset first."""
    members = FlatRnic.ports(config)
    return (
        Port("clk", False, 1),
        Port("rst", False, 1),
        *(Port(name, member.flow == Out, member.shape) for name, member in members.items()),
    )


def buses(config: RnicConfig) -> tuple[Bus, ...]:
    """Returns every bus interface. Only clock, reset and interrupt belong to none."""
    return tuple(_buses(config))


def _buses(config: RnicConfig) -> Iterator[Bus]:
    # One prefix may begin with another one: a port belongs to the longest prefix that fits.
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
        if "AWCACHE" in own:
            doc += f" {NOT_BUFFERABLE}"
        if own:
            yield Bus(name, kind, master, doc, own)
