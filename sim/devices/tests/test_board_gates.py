"""A board's netlist gets the pins of the virtual board; ``pytest --long`` runs a complete one."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_rnic.boards.ecpix5 import ECPIX5_85
from ddp_rnic.boards.virtual import VirtualPlatform
from ddp_rnic.flow.tools import ToolError
from ddp_rnic.sim.devices.board_gates import at_virtual_pins

PADS = {
    "clk100_0__io": [2],
    "rst_0__io": [3],
    "eth_rgmii_0__tx_data__io": [4, 5, 6, 7],
    "eth_rgmii_0__mdio__io": [8],
    "rgb_led_1__g__io": [9],
}


def netlist() -> dict[str, Any]:
    cells = {
        f"pad{pad}": {
            "type": "TRELLIS_IO",
            "parameters": {"DIR": direction},
            "connections": {"B": [pad]} | {pin: [bit] for pin, bit in pins.items()},
        }
        for pad, direction, pins in (
            (2, "INPUT", {"O": 20}),
            (3, "INPUT", {"O": 30}),
            (7, "OUTPUT", {"I": 73, "T": "0"}),
            (5, "OUTPUT", {"I": 71, "T": "0"}),
            (4, "OUTPUT", {"I": 70, "T": "0"}),
            (6, "OUTPUT", {"I": 72, "T": "0"}),
            (8, "BIDIR", {"I": 80, "O": 81, "T": 82}),
            (9, "OUTPUT", {"I": "1", "T": "0"}),
        )
    }
    cells["pll"] = {
        "type": "EHXPLLL",
        "parameters": {},
        "connections": {
            pin: [bit]
            for pin, bit in {
                "CLKI": 20, "CLKFB": 21, "CLKOP": 21, "CLKOS": 22, "LOCK": 23, "RST": 30
            }.items()
        },
    }  # fmt: skip
    cells["lut"] = {"type": "LUT4", "parameters": {}, "connections": {"A": [81], "Z": [82]}}
    ports = {name: {"direction": "inout", "bits": bits} for name, bits in PADS.items()}
    return {"cells": cells, "ports": ports, "netnames": {"all": {"bits": [*range(2, 100), "x"]}}}


def test_pads_become_ports_and_the_clocks_of_the_pll_come_from_outside() -> None:
    module = netlist()
    at_virtual_pins(module, ECPIX5_85)
    ports = {name: (port["direction"], port["bits"]) for name, port in module["ports"].items()}
    (opened,) = ports.pop("eth_rgmii_mdio_oe")[1]
    (reset,) = ports.pop("rst")[1]
    assert ports == {
        "source": ("input", [20]),
        "button": ("input", [30]),
        "eth_rgmii_tx_data": ("output", [70, 71, 72, 73]),
        "eth_rgmii_mdio": ("input", [81]),
        "eth_rgmii_mdio_o": ("output", [80]),
        "rgb_led1_g": ("output", ["1"]),
        "clk_main": ("input", [21]),
        "clk": ("input", [22]),
    }
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in module["cells"].values():
        kinds.setdefault(each["type"], []).append(each["connections"])
    (inverted, locked), (either,) = kinds["$not"], kinds["$or"]
    assert set(kinds) == {"$not", "$or", "LUT4"}
    assert inverted == {"A": [82], "Y": [opened]}
    assert either["A"] == [reset] and either["B"] == [30]
    assert locked == {"A": either["Y"], "Y": [23]}


def test_ports_have_the_names_of_the_virtual_board() -> None:
    platform = VirtualPlatform(ECPIX5_85.platform())
    for resource, number in (("eth_rgmii", 0), ("rgb_led", 1), ("uart", 0)):
        platform.request(resource, number)
    module = netlist()
    module["ports"]["uart_0__rx__io"] = {"direction": "inout", "bits": [10]}
    module["cells"]["pad10"] = {
        "type": "TRELLIS_IO", "parameters": {"DIR": "INPUT"}, "connections": {"B": [10], "O": [90]},
    }  # fmt: skip
    at_virtual_pins(module, ECPIX5_85)
    assert set(module["ports"]) - {"source", "button", "clk", "clk_main", "rst"} <= set(
        platform.ports
    )


def test_a_pin_that_the_virtual_board_has_not_is_reported() -> None:
    module = netlist()
    module["ports"]["strange"] = {"direction": "input", "bits": [99]}
    with pytest.raises(ToolError, match="has a pin strange, which the virtual board does not have"):
        at_virtual_pins(module, ECPIX5_85)
