"""Reads what a command is to play: a capture or a generated workload, and its regions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ..hdl.spec.config import RnicConfig
from ..sim.capture.capture import Assumption, Capture, CaptureError, Watch, read_capture
from ..sim.capture.pcap import Frame, LeftOut, read_frames
from ..sim.capture.piped import name_of
from ..sim.capture.traffic import Traffic, traffic_of, with_sctp
from ..sim.capture.unplayed import unplayed_sctp
from ..sim.devices.room import Room, check_fits, on_wire
from ..sim.replay.board_workload import workloads
from ..sim.replay.plan import Plan, plan
from ..sim.replay.regions import Given, Queue, Region, RegionError, load_regions, stream_ends
from ..sim.replay.sctp_regions import derive_all, of_sessions
from ..sim.replay.workload import generate

Regions = Annotated[
    Path | None,
    typer.Option(
        help="TOML file of regions and queues. Default: derived from the capture.",
        show_default=False,
    ),
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="For a capture that lacks the beginning of its connections: where an FPDU begins, and"
        " with which settings. WHAT is fpdu, plus any of ,at=OCTETS ,no-crc ,markers=OCTETS"
        " ,from=ADDRESS:PORT. 'at' counts the octets from the first captured one to the FPDU,"
        " 'markers' those from the FPDU to the first marker. For SCTP, WHAT is sctp: associations"
        " and sessions existed before the capture began. May be given several times.",
        show_default=False,
    ),
]
SctpPort = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        max=65535,
        help="Further UDP port of SCTP (RFC 6951), besides 9899. May be given several times.",
        show_default=False,
    ),
]


class Asked(NamedTuple):
    """The options of a command that choose the traffic."""

    capture: Path | None
    regions: Path | None
    assume: list[str]
    sctp_ports: list[int]

    @property
    def source(self) -> str:
        """The name of the traffic in reports."""
        return "generated workload" if self.capture is None else name_of(self.capture)


class Input(NamedTuple):
    """The traffic to play.

    ``ends`` are the streams that the host stops; ``derived``: the regions come from the capture.
    ``generated`` are the frames of a generated workload, which no file has.
    """

    capture: Capture
    traffic: Traffic
    regions: list[Region]
    queues: list[Queue]
    ends: dict[int, int]
    notes: list[str]
    left_out: list[LeftOut]
    derived: bool
    generated: tuple[Frame, ...] = ()

    def frames(self) -> Iterable[Frame]:
        """Returns the frames of the capture, which are read from its file again."""
        return self.generated or islice(read_frames(self.capture.path), self.capture.frames)


def planned(asked: Asked, config: RnicConfig, room: Room | None) -> tuple[list[Plan], Input]:
    """Returns the plans for a capture, and its traffic, with notes on both.

    Without a capture, the generated workload is played. A board, which has ``room`` beside its
    RNIC, gets the largest workload that fits it.
    """
    reason = None
    for generated in [None] if asked.capture or room is None else workloads(config):
        try:
            found = read_input(asked, config, wire=room is not None, generated=generated)
            plans, changes = plan(found.traffic, found.regions, config, found.ends, found.queues)
            if room is not None:
                check_fits(plans, changes, config, room)
            return plans, found._replace(notes=[*found.notes, *changes])
        except RegionError as error:
            reason = error
    assert reason is not None
    raise reason


def read_input(
    asked: Asked,
    config: RnicConfig,
    *,
    wire: bool = False,
    generated: Capture | None = None,
    watch: Watch | None = None,
) -> Input:
    """Returns the traffic to play.

    ``wire``: the traffic is for a board, which receives DDP over SCTP, with frames as they are on
    Ethernet, or DDP over MPA. ``generated``: the workload that replaces a capture. ``watch``: as
    for :func:`read_capture`.
    """
    frames: tuple[Frame, ...] = ()
    if generated is not None:
        captured, given = generated, Given([], [])
    elif asked.capture is None:
        workload = generate()
        captured, given = workload.capture(), Given(list(workload.regions), [])
        frames = workload.frames
    else:
        captured = read_capture(
            asked.capture,
            assumptions=[Assumption.parse(text) for text in asked.assume],
            sctp_ports=asked.sctp_ports,
            watch=watch,
        )
        given = Given([], [])
    captured.check()
    by_mpa, by_sctp = traffic_of(captured), captured.sctp
    left_out = []
    if wire and config.sctp:
        if by_mpa.arrivals:
            left_out.append(
                LeftOut(len(by_mpa.arrivals), "FPDU", "the board receives DDP over SCTP")
            )
        by_mpa = Traffic((), ())
    elif wire:
        if by_sctp:
            left_out.append(LeftOut(len(by_sctp), "SCTP packet", "the board receives DDP over MPA"))
        by_sctp = ()
    traffic = with_sctp(by_mpa, by_sctp, config)
    notes = [*captured.notes, *traffic.notes]
    left_out += captured.left_out
    left_out += by_mpa.left_out
    left_out += unplayed_sctp(by_sctp, traffic.sctp)
    if wire and traffic.sctp is not None:
        traffic = on_wire(traffic)
    if not traffic.arrivals and traffic.sctp is None:
        left = f"left out: {', '.join(map(str, left_out))}" if left_out else ""
        reason = "; ".join(filter(None, [*notes, left]))
        reason = reason or "no complete FPDU follows MPA start-up, and no SCTP carries DDP"
        raise CaptureError(f"{name_of(captured.path)} has no DDP to play: {reason}")
    if asked.regions is not None:
        hosts = dict.fromkeys([*captured.addresses, *traffic.endpoints])
        given = load_regions(asked.regions, hosts)
    if given.regions:
        regions, ends = of_sessions(given.regions, traffic), stream_ends(traffic)
    else:
        found = derive_all(traffic, config.stags)
        regions, ends = found.regions, found.ends
    return Input(
        captured, traffic, regions, given.queues, ends, notes, left_out, not given.regions, frames
    )
