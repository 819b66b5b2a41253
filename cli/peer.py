"""``rnic peer``: talks to RDMA peers through the gateware."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..flow.tools import ToolError
from ..hdl.spec.config import WIDTHS
from ..sim.capture.pcap import counted
from ..sim.devices.guest.ethernet import Ethernet
from ..sim.devices.guest.image import Image, kept, load
from ..sim.devices.guest.machine import Guest, check_qemu
from ..sim.devices.peer.association import SctpNetwork
from ..sim.devices.peer.channel import Tally
from ..sim.devices.peer.demo import PORT, Host, Row, Virtual, demo
from ..sim.devices.peer.disk import keep_files
from ..sim.devices.peer.lossy import lossy
from ..sim.devices.peer.network import Rates
from ..sim.devices.peer.node import Node
from ..sim.devices.peer.over_sctp import RELAY, SctpNode, over_sctp
from ..sim.devices.peer.record import Recorder
from ..sim.devices.peer.serve import CLIENTS, SERVERS, run_client, serve
from .outcome import DIFFERS, BadInput, exits
from .soak import network_line
from .terminal import bar, colored, console, print_table, say

peer = typer.Typer(
    no_args_is_help=True,
    help="Talk to RDMA peers through the gateware: Linux, or any other iWARP implementation.",
)

Crc = Annotated[bool, typer.Option("--crc/--no-crc", help="Ask the peer for CRCs.")]
Markers = Annotated[bool, typer.Option("--markers", help="Ask the peer for markers.")]
Width = Annotated[int, typer.Option(help="Datapath width in bits: 64, 128, 256 or 512.")]
Pcap = Annotated[
    Path | None,
    typer.Option(help="Write what the wire carried, for rnic sim.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print a line of JSON per connection.")]


@peer.command("serve")
@exits()
def serve_command(
    program: Annotated[str, typer.Argument(help="rping, perftest, sink, echo or nvme.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT at which to listen.")] = "127.0.0.1:7174",
    crc: Crc = True,
    markers: Markers = False,
    width: Width = 64,
    pcap: Pcap = None,
    as_json: Json = False,
    size: Annotated[
        str | None,
        typer.Option(help="Size of the nvme disk, such as 1G. Default: 64M.", show_default=False),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, help="End after so many peers. Default: serve until Ctrl-C.", show_default=False
        ),
    ] = None,
) -> None:
    """Serve peers: rping -c; ib_send_bw, ib_write_bw and ib_read_lat with -R; nvme connect; others.

    Exit code 0: no error. 1: an error, or gateware and golden model differ. 2: bad input.
    3: a tool is missing. 130: interrupted.
    """
    if program not in SERVERS:
        raise BadInput(f"the server must be one of {', '.join(SERVERS)}, not {program!r}")
    if size is not None and program != "nvme":
        raise BadInput(f"--size is that of the nvme disk, which {program} does not have")
    host, port = _address(listen)
    tallies: list[Tally] = []
    terminal = console()

    def report(tally: Tally) -> None:
        tallies.append(tally)
        _print_tally(terminal, tally, as_json)

    with _node(width, crc, markers, pcap) as node:
        asyncio.run(
            serve(
                node, program, host, port,
                count=count,
                report=report,
                size=_octets(size or "64M"),
                listening=lambda at: say(f"{program} listens at {host}:{at}"),
            )
        )  # fmt: skip
    _finish(tallies, pcap)


@peer.command("run")
@exits()
def run_command(
    program: Annotated[str, typer.Argument(help="rping, send, write, read, sink or echo.")],
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    count: Annotated[int, typer.Option(min=1, help="Messages, or turns of rping.")] = 10,
    size: Annotated[int, typer.Option(min=1, max=65536, help="Octets of a message.")] = 64,
    crc: Crc = True,
    markers: Markers = False,
    width: Width = 64,
    pcap: Pcap = None,
    as_json: Json = False,
) -> None:
    """Be a client of rping -s, of ib_send_bw, ib_write_bw or ib_read_lat with -R, or of a sink.

    Exit code 0: no error. 1: an error, or gateware and golden model differ. 2: bad input.
    3: a tool is missing. 130: interrupted.
    """
    if program not in CLIENTS:
        raise BadInput(f"the client must be one of {', '.join(CLIENTS)}, not {program!r}")
    host, port = _address(address)
    with _node(width, crc, markers, pcap) as node:
        tally = asyncio.run(run_client(node, program, host, port, count=count, size=size))
    _print_tally(console(), tally, as_json)
    _finish([tally], pcap)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"an address must be HOST:PORT, such as 127.0.0.1:7174, not {text!r}")
    return host.strip("[]"), int(port)


def _octets(text: str) -> int:
    """Returns a size in octets: a number, or one with K, M or G."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    octets = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0
    if not octets or octets % 512:
        raise BadInput(f"--size must be a multiple of 512 octets, such as 64M, not {text!r}")
    return octets


@contextmanager
def _node(width: int, crc: bool, markers: bool, pcap: Path | None) -> Iterator[Node]:
    """Opens a device, whose connections are recorded if a file is given for that."""
    if width not in WIDTHS:
        raise BadInput(f"--width must be one of {', '.join(map(str, WIDTHS))}, not {width}")
    with ExitStack() as stack:
        recorder = None
        if pcap is not None:
            try:
                recorder = stack.enter_context(Recorder(pcap))
            except OSError as error:
                raise BadInput(f"cannot write to --pcap {pcap}: {error.strerror}") from None
        yield stack.enter_context(Node(width, crc=crc, markers=markers, recorder=recorder))


def _print_tally(terminal: Console, tally: Tally, as_json: bool) -> None:
    """Prints what happened on a connection."""
    if as_json:
        print(json.dumps(tally.line()), flush=True)
        return
    verdict = "verified" if tally.verified else "not verified"
    unchecked = f", {tally.unchecked} octets of them of unknown content" * bool(tally.unchecked)
    terminal.print(
        f"{colored(verdict, tally.verified)}: {tally.program} with {escape(tally.peer)}:"
        f" {counted(tally.messages, 'message')}, {counted(tally.octets, 'octet')}{unchecked},"
        f" {counted(tally.cycles, 'cycle')}, {tally.rate:.1f} messages per second",
        soft_wrap=True,
    )
    for kind, sentences in (("error", tally.errors), ("difference", tally.differences)):
        for sentence in sentences:
            terminal.print(f"[red]{kind}[/red]: {escape(sentence)}", soft_wrap=True)


def _finish(tallies: list[Tally], pcap: Path | None) -> None:
    """Ends the command: exit code 1 unless gateware and model agree and nothing went wrong."""
    if any(tally.differences for tally in tallies):
        say(f"the packets are in {pcap}" if pcap else "repeat with --pcap FILE to keep the packets")
    if any(tally.differences or tally.errors for tally in tallies):
        raise typer.Exit(DIFFERS)


@peer.command("demo")
@exits()
def demo_command(
    against: Annotated[
        str | None,
        typer.Option(help="A Linux host to talk to, instead of a guest here.", show_default=False),
    ] = None,
    count: Annotated[int, typer.Option(min=2, help="Messages of each test.")] = 10,
    size: Annotated[
        int, typer.Option(min=23, max=65535, help="Octets of a message, as many as rping allows.")
    ] = 4000,
    disk: Annotated[
        bool, typer.Option("--disk", help="Also let Linux keep a file system on an NVMe disk here.")
    ] = False,
    bad_network: Annotated[
        bool,
        typer.Option(
            "--bad-network",
            help="Repeat all where packets are lost, doubled and overtaken, with a TCP without"
            " copies here: the gateware sends again.",
        ),
    ] = False,
    sctp: Annotated[
        bool,
        typer.Option("--sctp", help="Also exchange messages with Linux over SCTP, on four paths."),
    ] = False,
    width: Width = 64,
    pcap: Pcap = None,
) -> None:
    """Talk to an unmodified Linux: rping both ways, and perftest's send, write and read.

    Linux runs in a small guest, which is built from Debian's packages the first time.

    Exit code 0: all was verified. 1: it was not, or gateware and golden model differ. 2: bad input.
    3: QEMU or a package is missing. 130: interrupted.
    """
    if disk and against is not None:
        raise BadInput("--disk formats a disk in the guest: leave out --against")
    if bad_network and against is not None:
        raise BadInput(
            "--bad-network is one between the guest and the gateware: leave out --against"
        )
    if sctp and against is not None:
        raise BadInput("--sctp needs frames of the guest: leave out --against")
    files = _files() if against is None else None
    counts, chunks = Counter[str](), Counter[str]()
    with _node(width, True, False, pcap) as node:
        if files is None:
            assert against is not None
            rows = asyncio.run(demo(node, Host(against, say), count, size, say))
        else:
            rates = Rates() if bad_network else None
            rows = asyncio.run(_talk(node, files, count, size, disk, rates, sctp, counts, chunks))
    headings = "test", "client", "messages", "octets", "cycles", "messages/s", "peer", "result"
    print_table(
        console(),
        "Gateware and an unmodified Linux",
        headings,
        [
            [
                *(row.test, row.client, str(row.tally.messages), str(row.tally.octets)),
                *(str(row.tally.cycles), f"{row.tally.rate:.1f}", row.status),
                "verified" if row.verified else "; ".join(row.complaints),
            ]
            for row in rows
        ],
    )
    if bad_network:
        say(network_line(counts))
        if sctp:
            say(f"SCTP {network_line(chunks, 'chunk')}")
    if not all(row.verified for row in rows):
        for row in rows:
            for complaint in row.complaints:
                say(f"{row.test}: {complaint}")
        _finish([row.tally for row in rows], pcap)
        raise typer.Exit(DIFFERS)


def _files() -> Image:
    """Returns the files of the guest, and builds them if there are none."""
    try:
        if kept().exists():
            check_qemu()
        else:
            say("building the guest, once: this takes about 5 minutes")
        with bar("building the guest") as progress:
            return load(lambda done, total, text: _step(progress, done, total, text))
    except ToolError as error:
        raise ToolError(
            f"{error}; without a guest, --against HOST talks to a real peer, on which"
            " 'rdma link add siw0 type siw netdev eth0' has made a device"
        ) from None


def _step(progress: Callable[..., None] | None, done: int, total: int, text: str) -> None:
    if progress is None:
        say(f"{done + 1} of {total}: {text}")
    else:
        progress(done, total, text)


async def _talk(
    node: Node,
    files: Image,
    count: int,
    size: int,
    disk: bool,
    rates: Rates | None,
    sctp: bool,
    counts: Counter[str],
    chunks: Counter[str],
) -> list[Row]:
    """Runs the tests with a guest; on a bad network, too, if its rates are given.

    ``counts`` and ``chunks`` get those of the bad network, without and with SCTP.
    """
    say("starting the guest")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ddp-rnic-"))
        cable = stack.enter_context(Ethernet(Path(folder)))
        async with Guest(files, [PORT, RELAY], cable) as guest:
            rows = await demo(node, Virtual(guest), count, size, say)
            if disk:
                tally = await keep_files(node, guest, say)
                rows.append(Row("NVMe disk, ext4", "Linux", tally, tally.messages))
            if rates is not None:
                rows += await lossy(node, guest, cable, rates, counts, count, size, say)
            if sctp:
                other = stack.enter_context(SctpNode(node.config.width))
                record = node.recorder.frame if node.recorder else None
                for each in [None, rates] if rates else [None]:
                    tallied = chunks if each else Counter[str]()
                    network = SctpNetwork(cable, other.sim, each, tallied, record)
                    rows += await over_sctp(other, guest, network, count, size, say)
            return rows
