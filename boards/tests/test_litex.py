"""Compares each board with litex-boards, which owners of the boards have corrected.

Compared are device, pins, their attributes, and the delays of RGMII. ``DIFFERENCES`` has the reason
for each intended difference.
"""

import ast
import importlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from ddp_rnic.boards.catalog import BOARDS


class Litex(NamedTuple):
    """A board of litex-boards: its modules, its platform's options, and its names of the LEDs."""

    platform: str
    target: str
    options: dict = {}
    leds: dict = {}


_RGB = {f"rgb_led {number}": f"rgb_led {3 - number}" for number in range(4)}
_COLORLIGHT = partial(Litex, "colorlight_5a_75b", "colorlight_5a_75x")
_ECPIX5_LITEX = partial(Litex, "lambdaconcept_ecpix5", "lambdaconcept_ecpix5", leds=_RGB)
LITEX = {
    "ecpix5": _ECPIX5_LITEX({"device": "85F"}),
    "ecpix5-sends": _ECPIX5_LITEX({"device": "85F"}),
    "ecpix5-45f": _ECPIX5_LITEX({"device": "45F"}),
    "versa-ecp5-5g": Litex("lattice_versa_ecp5", "lattice_versa_ecp5", {"device": "LFE5UM5G"},
                           {f"led {number}": f"user_led {number}" for number in range(8)}),
    "butterstick": Litex("gsd_butterstick", "gsd_butterstick", {"device": "85F"}),
    "colorlight-5a-75b": _COLORLIGHT({"revision": "7.0"}),
    "colorlight-5a-75b-8.0": _COLORLIGHT({"revision": "8.0"}),
    "colorlight-5a-75b-8.2": _COLORLIGHT({"revision": "8.0"}),
}

_IDLE = ("UP", None, "the line idles high, also without an adapter: an ECP5 pulls inputs down")
_LED = ("UP", None, "as amaranth-boards has it: a lit LED's neighbours, undriven, stay dark")
_DEBUG = {f"uart.{part} PULLMODE": _IDLE for part in ("rx", "tx")}
_ECPIX5 = {
    **_DEBUG,
    **{f"rgb_led {number}.{part} PULLMODE": _LED for number in range(4) for part in "rgb"},
    "rst PULLMODE": ("UP", None, "an undriven pin must not hold the board in reset"),
}
#: By board and place: this project's value, that of litex-boards, and the reason.
DIFFERENCES = {
    "ecpix5": _ECPIX5,
    "ecpix5-sends": _ECPIX5,
    "ecpix5-45f": _ECPIX5,
    "versa-ecp5-5g": _DEBUG,
    "butterstick": {
        "uart.rx pins": ("C12", None, "LiteX has no serial port there; the microSD slot's DAT0"),
        "uart.tx pins": ("A13", None, "LiteX has no serial port there; the microSD slot's CMD"),
        "uart.rx IO_TYPE": ("LVCMOS33", None, "the microSD slot's, which LiteX has as spisdcard"),
        "uart.tx IO_TYPE": ("LVCMOS33", None, "the microSD slot's, which LiteX has as spisdcard"),
        **_DEBUG,
    },
    "colorlight-5a-75b-8.2": {
        "device": ("LFE5U-25F-7BG256", "LFE5U-25F-6BG256",
                   "8.2 has the pins of 8.0, and grade 7: pull request 635 of litex-boards"),
    },
}


def litex_platform(name):
    litex = LITEX[name]
    module = importlib.import_module(f"litex_boards.platforms.{litex.platform}")
    return module.Platform(**litex.options)


def litex_pins(platform):
    """Returns pins and attributes, by resource with its number, and by subsignal."""
    found = {}
    for name, number, *constraints in platform.constraint_manager.available:
        parts = [each for each in constraints if type(each).__name__ == "Subsignal"]
        common = [each for each in constraints if each not in parts]
        for part, own in [(each.name, each.constraints) for each in parts] or [("", [])]:
            entry = {}
            for each in (*common, *own):
                match type(each).__name__:
                    case "Pins":
                        entry["pins"] = " ".join(each.identifiers)
                    case "IOStandard":
                        entry["IO_TYPE"] = each.name
                    case "Misc":
                        entry.update([each.misc.split("=")])
            found[f"{name} {number}", part] = entry
    return found


def own_pins(board):
    """Returns the platform, and pins and attributes of the resources that the top requests."""
    platform = board.platform()
    wanted = {(platform.default_clk, 0), ("eth_rgmii", board.eth), ("uart", 0)}
    wanted |= {(platform.default_rst, 0)} if platform.default_rst else set()
    wanted |= {(led.name, led.number) for led in (*board.leds, *board.lit)}
    found = {}
    for name, number in sorted(wanted):
        resource = platform.resources[name, number]
        parts = resource.ios if hasattr(resource.ios[0], "ios") else [resource]
        for part in parts:
            pins = part.ios[0]
            entry = {"pins": " ".join(pins.names if hasattr(pins, "names") else pins.p.names)}
            label = "" if part is resource else part.name
            found[f"{name} {number}", label] = {**entry, **resource.attrs, **part.attrs}
    return platform, found


def counterpart(platform, leds, name, part):
    """Returns the name that litex-boards has for a part of a resource."""
    if name == "uart 0":
        return "serial 0", part
    if name == f"{platform.default_rst} 0":
        return "rst_n 0", ""
    if name.startswith("eth_rgmii"):
        if part.endswith("_clk"):
            return "eth_clocks 0", part.removesuffix("_clk")
        return "eth 0", {"rst": "rst_n"}.get(part, part.replace("ctrl", "ctl"))
    return leds.get(name, name), part


def differences(board):
    """Returns this project's value and that of litex-boards, for each place where they differ."""
    theirs = litex_platform(board.name)
    platform, ours = own_pins(board)
    found = {}
    device = f"{platform.device}-{platform.speed}{platform.package}"
    # The device's name, without the letter of the temperature range.
    if device != theirs.device[:-1]:
        found["device"] = device, theirs.device[:-1]
    known = litex_pins(theirs)
    for (name, part), entry in ours.items():
        if board.name == "butterstick" and name.startswith("rgb_leds_muxed"):
            continue  # see test_leds_of_the_butterstick
        other = known.get(counterpart(platform, LITEX[board.name].leds, name, part), {})
        place = ".".join(filter(None, (name.removesuffix(" 0") if "led" not in name else name,
                                       part)))
        for key in sorted({*entry, *other}):
            if entry.get(key) != other.get(key):
                found[f"{place} {key}"] = entry.get(key), other.get(key)
    return found


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_device_pins_and_attributes_are_those_of_litex_boards(board):
    intended = DIFFERENCES.get(board.name, {})
    assert all(reason for *_, reason in intended.values())
    assert differences(board) == {place: tuple(both) for place, (*both, _) in intended.items()}


def test_leds_of_the_butterstick_have_the_pins_of_litex_boards():
    known = litex_pins(litex_platform("butterstick"))
    leds = BOARDS["butterstick"].platform().resources["rgb_leds_muxed", 0]
    pins = {part.name: (part.ios[0].names, {**leds.attrs, **part.attrs}) for part in leds.ios}
    for number, pin in enumerate(pins["leds"][0]):
        assert known[f"user_led {number}", ""] == {"pins": pin, **pins["leds"][1]}
    colours = {pins[each][0][0] for each in "rgb"}
    assert set(known["user_led_color 0", ""]["pins"].split()) == colours


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_the_clock_is_that_of_litex_boards(board):
    period = litex_platform(board.name).default_clk_period
    assert board.platform().default_clk_frequency == pytest.approx(1e9 / period)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_delays_of_rgmii_are_those_of_litex_boards(board):
    """The delays are read from the text of the target; an import needs more of LiteX."""
    import litex_boards

    path = Path(litex_boards.__file__).parent / "targets" / f"{LITEX[board.name].target}.py"
    (call,) = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
               if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "LiteEthPHYRGMII")
    given = {each.arg: ast.literal_eval(each.value) for each in call.keywords
             if each.arg.endswith("_delay")}
    # The defaults of LiteEthPHYRGMII are 2 ns.
    rx, tx = (round(given.get(name, 2e-9) * 1e12) for name in ("rx_delay", "tx_delay"))
    assert (board.rx_delay, board.tx_delay) == (rx, tx)


@pytest.mark.parametrize("name", [name for name in BOARDS if name.startswith("colorlight")])
def test_a_phy_that_makes_the_boards_clock_is_never_reset(name):
    """litex-boards has left the reset pin out of each revision: "Do not reset the phy(s) if your
    gateware depend on clock on pin P6" (chubby75, hardware_V8.0.md).
    """
    ours = BOARDS[name].platform().resources["eth_rgmii", 0]
    assert "rst" not in {part.name for part in ours.ios}
    assert ("eth 0", "rst_n") not in litex_pins(litex_platform(name))
