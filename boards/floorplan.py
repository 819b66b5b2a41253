"""Where block RAMs go on a device that is nearly full.

nextpnr spreads block RAMs over what sites there are when all else has a place, some far from what
they belong to. So all is placed once, each block RAM is given a site near its neighbours of then,
and all is placed again around them.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from .netlist import Netlist, new_cell

__all__ = ["Site", "assign", "block_rams", "sites"]

#: What nextpnr calls the top of what it writes.
_TOP = "top"
_KIND = "DP16KD"
#: A block RAM's place: column, row, and what nextpnr calls it.
Site = tuple[int, int, str]
#: A net of so many pins is everywhere, and draws a block RAM nowhere.
_EVERYWHERE = 60


def block_rams(count: int) -> Netlist:
    """A netlist of nothing but block RAMs: placed, it tells the sites of a device with as many."""
    cells = {f"ram_{number}": new_cell(_KIND, {}, {}, {}) for number in range(count)}
    module = {"attributes": {"top": 1}, "ports": {}, "cells": cells, "netnames": {}}
    return {"modules": {_TOP: module}}


def sites(placed: Netlist) -> dict[str, Site]:
    """Sites by name of the block RAM there, in a netlist that nextpnr placed."""
    found = {}
    for name, cell in placed["modules"][_TOP]["cells"].items():
        if cell["type"] == _KIND:
            bel = cell["attributes"]["NEXTPNR_BEL"]
            found[name] = (*_at(bel), bel)
    return found


def _at(bel: str) -> tuple[int, int]:
    column, row, _ = bel.split("/")
    return int(column[1:]), int(row[1:])


def assign(placed: Netlist, free: Sequence[Site]) -> dict[str, str]:
    """A site for each block RAM of a netlist that nextpnr placed.

    The sum of distances to the cells on the same nets is such that no move and no exchange of two
    makes it less. ``free`` are all sites of the device.
    """
    cells = placed["modules"][_TOP]["cells"]
    pins: defaultdict[int | str, list[str]] = defaultdict(list)
    for name, cell in cells.items():
        for bits in cell["connections"].values():
            for bit in bits:
                pins[bit].append(name)
    where = {
        name: _at(cell["attributes"]["NEXTPNR_BEL"])
        for name, cell in cells.items()
        if cell["type"] in ("TRELLIS_FF", "TRELLIS_COMB")
    }
    places = [(column, row) for column, row, _ in free]
    cost: dict[str, list[int]] = {}
    for name, cell in cells.items():
        if cell["type"] == _KIND:
            near = Counter(
                where[other]
                for bits in cell["connections"].values()
                for bit in bits
                if len(pins[bit]) < _EVERYWHERE
                for other in pins[bit]
                if other in where
            )
            cost[name] = [
                sum(
                    count * (abs(x - column) + abs(y - row))
                    for (column, row), count in near.items()
                )
                for x, y in places
            ]
    names = {bel: number for number, (_, _, bel) in enumerate(free)}
    at = {name: names[bel] for name, (_, _, bel) in sites(placed).items()}
    empty = set(range(len(free))) - set(at.values())
    better = True
    while better:
        better = False
        for name, own in cost.items():
            if empty and own[best := min(empty, key=own.__getitem__)] < own[at[name]]:
                empty ^= {best, at[name]}
                at[name] = best
                better = True
            for other, its in cost.items():
                here, there = at[name], at[other]
                if own[there] + its[here] < own[here] + its[there]:
                    at[name], at[other] = there, here
                    better = True
    return {name: free[number][2] for name, number in at.items()}
