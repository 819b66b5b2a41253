"""A netlist made by hand: a block RAM and the registers that read it."""

from typing import Any

from ddp_rnic.flow import netlist
from ddp_rnic.flow.netlist import Netlist

BITS = 18
#: The nets of this netlist: clocks, write enable, clock enable, then buses.
CLOCK, OTHER_CLOCK, WRITE, ENABLE = 2, 3, 4, 5
WRITE_ADDRESS, READ_ADDRESS = list(range(10, 20)), list(range(20, 30))
WRITE_DATA, READ_DATA = list(range(40, 58)), list(range(60, 78))
OUTPUT, COPY = list(range(80, 98)), list(range(100, 118))


def flip_flop(data: int, output: int, **changes: Any) -> Netlist:
    cell = netlist.flip_flop(CLOCK, data, output)
    for name, value in changes.items():
        if isinstance(value, list):
            cell["connections"][name] = value
            cell["port_directions"][name] = "input"
        else:
            cell["parameters"][name] = value
    return cell


def logic(inputs: list[int], output: int) -> Netlist:
    """Returns the exclusive-or of up to four nets."""
    pins = {pin: [bit] for pin, bit in zip("ABCD", [*inputs, "0", "0", "0"], strict=False)}
    return netlist.new_cell("LUT4", {"INIT": f"{0x6996:016b}"}, pins, {"Z": [output]})


def port(direction: str, bits: list[int]) -> Netlist:
    return {"direction": direction, "bits": bits}


def ram(**changes: Any) -> Netlist:
    """Returns a netlist with 1024 words of 18 bits, written by port A, read by port B into
    flip-flops.
    """
    inputs: dict[str, Any] = {"CLKA": [CLOCK], "CLKB": [CLOCK], "WEA": [WRITE], "OCEB": ["1"]}
    for side, address in (("A", WRITE_ADDRESS), ("B", READ_ADDRESS)):
        inputs |= {f"AD{side}{4 + at}": [bit] for at, bit in enumerate(address)}
    inputs |= {f"DIA{at}": [bit] for at, bit in enumerate(WRITE_DATA)}
    outputs = {f"DOB{at}": [bit] for at, bit in enumerate(READ_DATA)}
    parameters = {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG", "CLKBMUX": "CLKB"}
    block = netlist.new_cell("DP16KD", parameters, inputs, outputs)
    cells = {"block": block} | {
        f"q{at}": flip_flop(READ_DATA[at], OUTPUT[at], **changes) for at in range(BITS)
    }
    ports = {
        "clk": port("input", [CLOCK]),
        "other": port("input", [OTHER_CLOCK]),
        "we": port("input", [WRITE]),
        "ce": port("input", [ENABLE]),
        "wa": port("input", WRITE_ADDRESS),
        "ra": port("input", READ_ADDRESS),
        "wd": port("input", WRITE_DATA),
        "rd": port("output", OUTPUT),
    }
    names = {name: {"bits": each["bits"]} for name, each in ports.items()}
    return {"modules": {"top": {"cells": cells, "ports": ports, "netnames": names}}}
