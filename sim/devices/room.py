"""Checks that a board has room for a plan, and lays frames out as a board can send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ...hdl.spec import board
from ...hdl.spec.completion import OCTETS
from ...hdl.spec.config import RnicConfig
from ..capture.capture import CaptureError
from ..capture.sctp_traffic import Incoming
from ..capture.traffic import Traffic
from ..engines.engine import Packet
from ..replay.plan import Plan
from ..replay.regions import RegionError


def on_wire(traffic: Traffic) -> Traffic:
    """Returns the traffic with its frames as they are on Ethernet.

    Raises
    ------
    CaptureError
        A frame is too long for a board to send.
    """
    assert traffic.sctp is not None
    steps = list(traffic.sctp.steps)
    for number, step in enumerate(steps):
        if isinstance(step, Incoming):
            if len(step.octets) > board.LONGEST:
                raise CaptureError(
                    f"frame {step.frame} has {len(step.octets)} octets, but a board sends at most"
                    f" {board.LONGEST}"
                )
            steps[number] = replace(step, octets=step.octets.ljust(board.SHORTEST, b"\0"))
    return replace(traffic, sctp=replace(traffic.sctp, steps=steps))


class Room(NamedTuple):
    """The sizes of a board beside its RNIC.

    They are octets of memory and, with MPA, the number of TCP connections and octets of each
    window.
    """

    memory: int
    connections: int = 0
    window: int = 0


def check_fits(plans: Sequence[Plan], changes: Sequence[str], has: RnicConfig, room: Room) -> None:
    """Raises :class:`~..replay.regions.RegionError` unless a board has room for these plans."""
    if any(plan.config != has for plan in plans):
        raise RegionError(f"the board is too small for this: {'; '.join(changes)}")
    for plan in plans:
        entries = plan.completions
        if has.sctp:  # the driver's queue for SCTP's owner
            entries += max(entries, 1 << has.owner_entries.bit_length())
        octets = plan.ring.address + entries * OCTETS
        if octets > room.memory:
            raise RegionError(
                f"the board has {room.memory} octets of memory, but this needs {octets}:"
                " give fewer or shorter regions"
            )
        packets = [each for each in plan.packets() if isinstance(each, Packet)]
        streams = len({each.stream for each in packets})
        if streams > room.connections:
            raise RegionError(
                f"the board takes {room.connections} TCP connections, but this has {streams}"
            )
        longest = max((len(each.raw) for sent in plan.sent for each in sent), default=0)
        if packets and longest > room.window:
            raise RegionError(
                f"the board has a TCP window of {room.window} octets, but an FPDU has {longest}"
            )
        longest = max((len(each.octets) for each in plan.golden.exceptions), default=0)
        if longest > board.RECEIVED.size:
            raise RegionError(
                f"the board shows its host packets of up to {board.RECEIVED.size} octets, but one"
                f" of {longest} would arrive"
            )
