"""Each block RAM has a site of its own, and none has a better one."""

import random
from itertools import combinations

from ddp_rnic.boards import floorplan
from ddp_rnic.boards.netlist import Netlist, new_cell

SITES = [(4 + 9 * column, 10 + 24 * row, f"X{4 + 9 * column}/Y{10 + 24 * row}/EBR0")
         for column in range(6) for row in range(3)]  # fmt: skip


def placed(count: int, rng: random.Random) -> tuple[Netlist, dict[str, list[tuple[int, int]]]]:
    """Block RAMs at some of the sites, on nets with flip-flops all over; and where those are."""
    cells, near = {}, {}
    for number, (_, _, bel) in enumerate(rng.sample(SITES, count)):
        nets = range(100 * number, 100 * number + rng.randrange(1, 20))
        name = f"ram{number}"
        cells[name] = new_cell("DP16KD", {}, {f"ADA{net}": [net] for net in nets}, {})
        cells[name]["attributes"]["NEXTPNR_BEL"] = bel
        near[name] = [(rng.randrange(60), rng.randrange(70)) for _ in nets]
        for net, (x, y) in zip(nets, near[name], strict=True):
            cells[f"f{net}"] = new_cell("TRELLIS_FF", {}, {}, {"Q": [net]})
            cells[f"f{net}"]["attributes"]["NEXTPNR_BEL"] = f"X{x}/Y{y}/SLICEA.FF0"
    return {"modules": {"top": {"cells": cells}}}, near


def test_no_move_and_no_exchange_is_better() -> None:
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    where = {bel: (x, y) for x, y, bel in SITES}
    for count in (1, 2, 7, 17, 18):
        netlist, near = placed(count, rng)

        def wire(name: str, bel: str, near: dict[str, list[tuple[int, int]]] = near) -> int:
            x, y = where[bel]
            return sum(abs(x - column) + abs(y - row) for column, row in near[name])

        at = floorplan.assign(netlist, SITES)
        assert at.keys() == near.keys()
        assert len(set(at.values())) == count
        assert set(at.values()) <= where.keys()
        free = where.keys() - set(at.values())
        for name, bel in at.items():
            assert all(wire(name, bel) <= wire(name, other) for other in free)
        for (a, here), (b, there) in combinations(at.items(), 2):
            assert wire(a, here) + wire(b, there) <= wire(a, there) + wire(b, here)


def test_a_net_that_is_everywhere_draws_nothing() -> None:
    netlist, _ = placed(1, random.Random(1))
    cells = netlist["modules"]["top"]["cells"]
    ram = cells["ram0"]
    ram["connections"] = {"ADA0": [1], "CEA": [2]}
    for number in range(60):
        cells[f"g{number}"] = new_cell("TRELLIS_FF", {}, {"CE": [2]}, {})
        cells[f"g{number}"]["attributes"]["NEXTPNR_BEL"] = "X60/Y70/SLICEA.FF0"
    cells["near"] = new_cell("TRELLIS_FF", {}, {}, {"Q": [1]})
    cells["near"]["attributes"]["NEXTPNR_BEL"] = "X0/Y0/SLICEA.FF0"
    assert floorplan.assign(netlist, SITES) == {"ram0": "X4/Y10/EBR0"}


def test_the_sites_are_where_block_rams_alone_were_placed() -> None:
    netlist = floorplan.block_rams(2)
    cells = netlist["modules"]["top"]["cells"]
    assert [cell["type"] for cell in cells.values()] == ["DP16KD"] * 2
    for cell, bel in zip(cells.values(), ("X4/Y10/EBR0", "X84/Y58/EBR3"), strict=True):
        cell["attributes"]["NEXTPNR_BEL"] = bel
    assert [*floorplan.sites(netlist).values()] == [
        (4, 10, "X4/Y10/EBR0"), (84, 58, "X84/Y58/EBR3")]  # fmt: skip
