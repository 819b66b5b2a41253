"""Adds a board: amaranth-boards describes its pins, and its device's size sets the RNIC's size.

For ``rnic build``, put such a file into ``boards/`` and add a line to ``boards/catalog.py``. This
example turns the board's top module into Verilog whose ports are the pins, for a simulator.
"""

import re

from amaranth.build import Attrs, Clock, Pins, Resource, Subsignal
from amaranth.vendor import LatticeECP5Platform
from ddp_rnic.boards.common import Board, Led
from ddp_rnic.boards.sizes import SMALL
from ddp_rnic.boards.virtual import to_verilog


class MyPlatform(LatticeECP5Platform):
    """An LFE5U-25F, an RGMII PHY that delays both clocks, and a serial adapter."""

    device, package, speed = "LFE5U-25F", "BG256", "6"
    default_clk = "clk25"
    connectors: list[object] = []
    resources = [
        Resource("clk25", 0, Pins("P6", dir="i"), Clock(25e6), Attrs(IO_TYPE="LVCMOS33")),
        Resource("led", 0, Pins("T6", dir="o"), Attrs(IO_TYPE="LVCMOS33")),
        Resource(
            "uart", 0,
            Subsignal("rx", Pins("M13", dir="i")), Subsignal("tx", Pins("N14", dir="o")),
            Attrs(IO_TYPE="LVCMOS33"),
        ),
        Resource(
            "eth_rgmii", 0,
            Subsignal("rst", Pins("P5", dir="o", invert=True)),
            Subsignal("mdio", Pins("P4", dir="io")), Subsignal("mdc", Pins("P3", dir="o")),
            Subsignal("tx_clk", Pins("L1", dir="o")), Subsignal("tx_ctl", Pins("L2", dir="o")),
            Subsignal("tx_data", Pins("M2 M1 P1 R1", dir="o")),
            Subsignal("rx_clk", Pins("J1", dir="i")), Subsignal("rx_ctl", Pins("J2", dir="i")),
            Subsignal("rx_data", Pins("K2 J3 K1 K3", dir="i")),
            Attrs(IO_TYPE="LVCMOS33"),
        ),
    ]  # fmt: skip


MINE = Board(
    name="mine",
    title="My own board",
    platform=MyPlatform,
    leds=(Led("led", 0),),
    cable=("--cable", "ft232"),
    **SMALL,  # type: ignore[arg-type]
)

if __name__ == "__main__":
    top = re.search(r"module \\?rnic ?\((.*?)\);", to_verilog(MINE), re.DOTALL)
    assert top is not None
    ports = top[1].replace(",", " ").split()
    assert {"uart_rx", "uart_tx", "eth_rgmii_rx_data", "led0"} <= set(ports)
    print(f"{len(ports)} ports:", *ports)
