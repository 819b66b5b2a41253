"""``rnic prm``: owns a device, and shares it among programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..sim.devices.manage import serve
from ..sw_driver.prm import Policy
from ..sw_driver.prm.quota import limits_of
from ..sw_driver.prm.server import group_number, user_number
from .outcome import BadInput, exits


@exits()
def prm(
    context: typer.Context,
    device: Annotated[
        str, typer.Argument(help="uart:PORT, mapped:FILE, udmabuf:FILE,DEVICE or sim.")
    ],
    baud: Annotated[
        int | None,
        typer.Option(min=1, help="Baud rate of uart:PORT. Default: 1000000.", show_default=False),
    ] = None,
    socket: Annotated[Path, typer.Option(help="Unix socket for clients.")] = Path("rnic.sock"),
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="User who may connect, besides you. May be given several times.",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Group whose members may connect.", show_default=False)
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Clients that share the device equally.")] = 8,
    per_user: Annotated[
        int | None,
        typer.Option(
            help="Clients that one user may have. Default: half of them.", show_default=False
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=NUMBER: what each client may use. NAME is stags, streams, buffers, pages,"
            " regions, octets, completions, domains, queues, memory or memories. May be given"
            " several times.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="With mapped:FILE: a file of the next doorbell page, from page 1 on, as"
            " /dev/uio1, which a client maps to ring by itself. May be given up to 16 times.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Audit log, one line of JSON per decision. Default: standard error."),
    ] = None,
    play: Annotated[
        Path | None,
        typer.Option(
            metavar="CAPTURE",
            help="With sim, instead: show how two programs share the device. One plays this"
            " capture, the other one is hostile.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Own a device and share it among unprivileged programs (RFC 5041 section 8.3.2).

    Exit code 0: ended by a signal; with --play, both programs are through, and memory and verdicts
    are those of the golden model. 1: the device or its link failed, or they differ. 2: bad
    input. 3: a tool is missing.
    """
    if play is not None:
        _show(context, device, play)
        return
    policy = Policy(
        users=Policy().users | {user_number(name) for name in user or ()},
        group=None if group is None else group_number(group),
        clients=clients,
        per_user=per_user,
        limits=limits_of(share or ()),
    )
    serve(device, socket, policy, log, baud=baud, pages=page or ())


def _show(context: typer.Context, device: str, capture: Path) -> None:
    """Shows two programs that share the simulated device; takes no other option."""
    given = {
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    if device != "sim" or given != {"device", "play"}:
        raise BadInput("--play needs the device sim, and takes no other option")
    from .sharing import show

    show(capture)
