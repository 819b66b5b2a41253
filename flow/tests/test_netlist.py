"""Tests of the netlist passes: each moves the right cells, and the rest behaves as before."""

import copy
import random
from typing import Any

import pytest
from ddp_rnic.flow.netlist import (
    Netlist,
    absorb_output_registers,
    area,
    area_by_part,
    extract_shift_registers,
    fold_enables,
    new_cell,
    promote_resets,
)
from ddp_rnic.flow.tests.netlists import (
    BITS,
    COPY,
    ENABLE,
    OTHER_CLOCK,
    OUTPUT,
    READ_DATA,
    WRITE,
    WRITE_DATA,
    flip_flop,
    logic,
    port,
    ram,
)


class Run:
    """Simulates such a netlist.

    It has block RAM as in its data sheet, distributed RAM written each cycle, tables, and
    flip-flops with enable.
    """

    def __init__(self, netlist: Netlist) -> None:
        self.module = netlist["modules"]["top"]
        self.nets: dict[Any, int] = {"0": 0, "1": 1}
        self.words = [0] * 1024

    def _get(self, bits: list[Any]) -> int:
        return sum(self.nets.get(bit, 0) << at for at, bit in enumerate(bits))

    def _bus(self, cell: Netlist, name: str, first: int, count: int) -> int:
        connections = cell["connections"]
        return self._get([connections[f"{name}{at}"][0] for at in range(first, first + count)])

    def cycle(self, **values: int) -> int:
        """Simulates a clock edge with these port values; returns the output after it."""
        for name, value in values.items():
            for at, bit in enumerate(self.module["ports"][name]["bits"]):
                self.nets[bit] = value >> at & 1
        self._settle()
        now: dict[Any, int] = {}
        for cell in self.module["cells"].values():
            connections, parameters = cell["connections"], cell["parameters"]
            if cell["type"] == "TRELLIS_DPR16X4":
                cell["words"][self._get(connections["WAD"])] = self._get(connections["DI"])
            if cell["type"] in ("TRELLIS_DPR16X4", "LUT4"):
                continue
            if cell["type"] == "TRELLIS_FF":
                if parameters["CEMUX"] != "CE" or self._get(connections["CE"]):
                    now[connections["Q"][0]] = self._get(connections["DI"])
                continue
            latch = self.words[self._bus(cell, "ADB", 4, 10)]
            held = cell.setdefault("latch", 0)
            registered = parameters["REGMODE_B"] == "OUTREG"
            if not registered or self._get(connections["OCEB"]):
                for at in range(BITS):
                    value = held if registered else latch
                    now[connections[f"DOB{at}"][0]] = value >> at & 1
            cell["latch"] = latch
            if self._get(connections["WEA"]):
                self.words[self._bus(cell, "ADA", 4, 10)] = self._bus(cell, "DIA", 0, BITS)
        self.nets |= now
        self._settle()
        return self._get(self.module["ports"]["rd"]["bits"])

    def _settle(self) -> None:
        """Computes the outputs of tables and distributed RAM; no table reads another one here."""
        for cell in self.module["cells"].values():
            connections = cell["connections"]
            if cell["type"] == "LUT4":
                at = self._get([connections[pin][0] for pin in "ABCD"])
                self.nets[connections["Z"][0]] = int(cell["parameters"]["INIT"], 2) >> at & 1
            elif cell["type"] == "TRELLIS_DPR16X4":
                words = cell.setdefault("words", [0] * 16)
                word = words[self._get(connections["RAD"])]
                self.nets |= {bit: word >> at & 1 for at, bit in enumerate(connections["DO"])}


@pytest.mark.parametrize("enabled", (False, True))
def test_absorbed_registers_give_the_same_octets_in_the_same_cycles(enabled: bool) -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = ram(**({"CEMUX": "CE", "CE": [ENABLE]} if enabled else {}))
    after = copy.deepcopy(before)
    assert absorb_output_registers(after, "top") == 1
    assert list(after["modules"]["top"]["cells"]) == ["block"]
    left, right = Run(before), Run(after)
    seen = set()
    for cycle in range(2000):
        values = {"we": rng.random() < 0.7, "ce": rng.random() < 0.5, "wd": rng.getrandbits(BITS)}
        values |= {"wa": rng.randrange(16), "ra": rng.randrange(16)}
        expected, got = left.cycle(**values), right.cycle(**values)
        assert got == expected, f"cycle {cycle}: rd expected {expected:#x} got {got:#x}"
        seen.add(got)
    assert len(seen) > 100


def test_two_copies_of_a_register_become_one() -> None:
    netlist = ram()
    module = netlist["modules"]["top"]
    for at in range(BITS):
        module["cells"][f"copy{at}"] = flip_flop(READ_DATA[at], COPY[at])
    module["ports"]["copy"] = port("output", COPY)
    assert absorb_output_registers(netlist, "top") == 1
    assert module["ports"]["copy"]["bits"] == module["ports"]["rd"]["bits"]


@pytest.mark.parametrize(
    "changes",
    (
        {"CLK": [OTHER_CLOCK]},
        {"CLKMUX": "INV"},
        {"LSR": [ENABLE]},
        {"REGSET": "SET"},
        {"CEMUX": "INV", "CE": [ENABLE]},
    ),
    ids=lambda changes: " ".join(changes),
)
def test_a_register_that_the_block_ram_has_not_stays(changes: dict[str, Any]) -> None:
    netlist = ram(**changes)
    before = copy.deepcopy(netlist)
    assert absorb_output_registers(netlist, "top") == 0
    assert netlist == before


def test_a_port_with_another_reader_or_unlike_registers_stays() -> None:
    netlist = ram()
    netlist["modules"]["top"]["ports"]["raw"] = port("output", READ_DATA[3:4])
    assert absorb_output_registers(netlist, "top") == 0
    netlist = ram()
    odd = flip_flop(READ_DATA[3], OUTPUT[3], CEMUX="CE", CE=[ENABLE])
    netlist["modules"]["top"]["cells"]["q3"] = odd
    assert absorb_output_registers(netlist, "top") == 0


def row(first: int, length: int, data: int, **changes: Any) -> dict[str, Netlist]:
    """Returns flip-flops in a row, from net ``data`` to net ``first + length - 1``."""
    nets = [data, *range(first, first + length)]
    return {f"f{net}": flip_flop(nets[at], net, **changes) for at, net in enumerate(nets[1:])}


def test_shift_registers_in_distributed_ram_give_the_same_in_the_same_cycles() -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    before = ram()
    module = before["modules"]["top"]
    outputs = []
    for number in range(30):
        length = rng.choice((2, 3, 4, 9, 16, 17, 18, 33, 50))
        first = 1000 + 100 * number
        module["cells"] |= row(first, length, rng.choice(OUTPUT))
        outputs.append(first + length - 1)
    lengths = [output % 100 + 1 for output in outputs]
    module["ports"] |= {"taps": port("output", OUTPUT), "rd": port("output", outputs)}
    after = copy.deepcopy(before)
    # A row of more than 16 becomes rows of 16 and a rest; a rest of one stays a flip-flop.
    assert extract_shift_registers(after, "top") == sum(
        length - (length % 16 == 1) for length in lengths
    )
    rams = [
        cell for cell in after["modules"]["top"]["cells"].values()
        if cell["type"] == "TRELLIS_DPR16X4"
    ]  # fmt: skip
    parts = [16] * sum(length // 16 for length in lengths) + [length % 16 for length in lengths]
    assert len(rams) == sum(-(-parts.count(part) // 4) for part in set(parts) - {0, 1})
    left, right = Run(before), Run(after)
    for cycle in range(500):
        values = {"we": rng.random() < 0.7, "wd": rng.getrandbits(BITS)}
        values |= {"wa": rng.randrange(16), "ra": rng.randrange(16)}
        expected, got = left.cycle(**values), right.cycle(**values)
        assert got == expected, f"cycle {cycle}: expected {expected:#x} got {got:#x}"
    assert expected


@pytest.mark.parametrize(
    "changes",
    (
        {"CEMUX": "CE", "CE": [ENABLE]},
        {"LSR": [ENABLE]},
        {"REGSET": "SET"},
        {"CLKMUX": "INV"},
    ),
    ids=lambda changes: " ".join(changes),
)
def test_a_shift_register_with_more_than_a_clock_stays(changes: dict[str, Any]) -> None:
    netlist = ram()
    module = netlist["modules"]["top"]
    module["cells"] |= row(1000, 5, OUTPUT[0], **changes)
    module["ports"]["last"] = port("output", [1004])
    before = copy.deepcopy(netlist)
    assert extract_shift_registers(netlist, "top") == 0
    assert netlist == before


def test_an_enable_of_few_flip_flops_becomes_gates_that_do_the_same() -> None:
    rng = random.Random(1)
    before = ram()
    module = before["modules"]["top"]
    outputs = {}
    for enable, count in ((ENABLE, 8), (WRITE, 9)):
        outputs[enable] = list(range(1000 * enable, 1000 * enable + count))
        for at, output in enumerate(outputs[enable]):
            module["cells"][f"e{output}"] = flip_flop(OUTPUT[at], output, CEMUX="CE", CE=[enable])
    module["cells"]["pin"] = flip_flop(OUTPUT[0], 9000, CEMUX="CE", CE=[OTHER_CLOCK])
    module["cells"]["pin"]["attributes"]["syn_useioff"] = "1"
    module["ports"] |= {
        "taps": port("output", OUTPUT), "rd": port("output", sum(outputs.values(), [])),
    }  # fmt: skip
    after = copy.deepcopy(before)
    assert fold_enables(after, "top") == len(outputs[ENABLE])
    cells = after["modules"]["top"]["cells"].values()
    enabled = [cell["connections"]["Q"][0] for cell in cells if "CE" in cell["connections"]]
    assert sorted(enabled) == [*outputs[WRITE], 9000]
    left, right = Run(before), Run(after)
    seen = set()
    for cycle in range(500):
        values = {"we": rng.random() < 0.5, "ce": rng.random() < 0.5, "wd": rng.getrandbits(BITS)}
        values |= {"wa": rng.randrange(16), "ra": rng.randrange(16)}
        expected, got = left.cycle(**values), right.cycle(**values)
        assert got == expected, f"cycle {cycle}: expected {expected:#x} got {got:#x}"
        seen.add(got)
    assert len(seen) > 100


def test_what_is_read_on_the_way_stays() -> None:
    netlist = ram()
    module = netlist["modules"]["top"]
    module["cells"] |= row(1000, 7, OUTPUT[0])
    module["ports"]["tap"] = port("output", [1002])
    module["ports"]["last"] = port("output", [1006])
    assert extract_shift_registers(netlist, "top") == 7
    kept = {bit for cell in module["cells"].values() for bit in cell["connections"].get("DO", [])}
    assert {1002, 1006} <= kept
    assert area(netlist, "top")["ff"] == BITS + 2 + 2


@pytest.mark.parametrize("source", ("pin", "pin through logic", "other clock", "both clocks"))
def test_a_row_that_may_synchronize_stays(source: str) -> None:
    netlist = ram()
    module = netlist["modules"]["top"]
    cells = module["cells"]
    data = WRITE_DATA[0]
    if source == "pin through logic":
        cells["logic"] = logic([WRITE_DATA[0], OUTPUT[0]], 900)
        data = 900
    elif source == "other clock":
        cells["far"] = flip_flop(OUTPUT[0], 900, CLK=[OTHER_CLOCK])
        data = 900
    elif source == "both clocks":
        cells["block"]["connections"]["CLKA"] = [OTHER_CLOCK]
        cells["logic"] = logic([OUTPUT[0], READ_DATA[0]], 900)
        data = 900
    cells |= row(1000, 3, data)
    module["ports"]["last"] = port("output", [1002])
    before = copy.deepcopy(netlist)
    assert extract_shift_registers(netlist, "top") == 0
    assert netlist == before


@pytest.mark.parametrize("count", (999, 1000))
def test_a_reset_of_many_flip_flops_goes_by_the_global_network(count: int) -> None:
    netlist = ram(CEMUX="CE", CE=[ENABLE])
    cells = netlist["modules"]["top"]["cells"]
    for at in range(count):
        cells[f"r{at}"] = flip_flop(1000 + at, 3000 + at, LSR=[ENABLE])
    before = copy.deepcopy(netlist)
    promoted = promote_resets(netlist, "top")
    assert promoted == (count == 1000)
    if promoted:
        (name,) = cells.keys() - before["modules"]["top"]["cells"].keys()
        buffer = cells.pop(name)
        assert buffer["type"] == "DCCA"
        assert buffer["connections"]["CLKI"] == [ENABLE]
        reset = buffer["connections"]["CLKO"]
        nets = netlist["modules"]["top"]["netnames"]
        assert name not in nets  # yosys takes it for one namespace
        (net,) = nets.keys() - before["modules"]["top"]["netnames"].keys()
        assert nets.pop(net)["bits"] == reset
        for at in range(count):
            assert cells[f"r{at}"]["connections"]["LSR"] == reset
            cells[f"r{at}"]["connections"]["LSR"] = [ENABLE]
    assert netlist == before


@pytest.mark.parametrize("wrapper", ["", "wrapper."])
def test_area_is_told_of_each_instance(wrapper: str) -> None:
    netlist = ram()
    module = netlist["modules"]["top"]
    scopes = [
        *([wrapper[:-1]] if wrapper else []),
        *(wrapper + name for name in ("store$12", "check", "check.sum")),
    ]
    cells = {name: new_cell("$scopeinfo", {}, {}, {}) for name in scopes}
    # The instance comes from the cell's name, from the net that it drives, or from neither.
    cells[f"{wrapper}check.sum.carry_LUT4_Z"] = logic([OUTPUT[0]], 1000)
    cells["abc"] = logic([OUTPUT[1]], 1001)
    cells[f"{wrapper}beat.count_LUT4_Z"] = logic([OUTPUT[2]], 1002)
    cells["carry"] = new_cell("CCU2C", {}, {"A0": [OUTPUT[3]]}, {"S0": [1003]})
    module["netnames"][f"{wrapper}check.sum.o.data"] = {"bits": [1001, 1003]}
    module["netnames"][f"{wrapper}store$12.read"] = {"bits": READ_DATA + OUTPUT}
    module["cells"] |= cells
    parts = area_by_part(netlist, "top")
    assert parts == {
        "store": {"lut4": 0, "ff": BITS, "dp16kd": 1},
        "check": {"lut4": 4, "ff": 0, "dp16kd": 0},
        "": {"lut4": 1, "ff": 0, "dp16kd": 0},
    }
    assert list(parts) == ["store", "check", ""]
