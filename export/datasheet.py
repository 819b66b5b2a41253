"""Writes the data sheet of a configuration, as one self-contained HTML file and as PDF.

``datasheet.html`` beside this module has the headings and the text. Every number comes from a
declaration in ``hdl/spec``, from the estimate of :mod:`.estimate`, or from the run of
:mod:`.trial`; the template has none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from enum import Enum, IntEnum, IntFlag
from html import escape
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from .. import __version__
from ..flow.tools import ToolError
from ..hdl.spec import commands, completion, ddp, send
from ..hdl.spec.commands import Wait, Write
from ..hdl.spec.completion import Field
from ..hdl.spec.config import RnicConfig, parameters
from . import testbench, trial
from .drawing import diagram, timing
from .estimate import CELLS, Estimate, changed, clocks, devices, estimate, untried
from .interface import Bus, buses, ports
from .registers import registers
from .trial import Trial

__all__ = ["calls", "in_c", "in_python", "page", "print_pdf"]

_TEMPLATE = Path(__file__).with_name("datasheet.html")
#: Programs that print a page as PDF.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Seconds in which a browser must print.
_LIMIT = 120
#: Cycles around a transfer in a timing picture, and the most cycles of a picture.
_AROUND, _MOST = 1, 18
_VERDICTS = {True: "fits", False: "too large", None: "within the error"}
#: The channels of a kind of bus, each with the signals that its picture shows.
_CHANNELS = {
    "aw": ("awvalid", "awready", "awaddr", "awlen"),
    "w": ("wvalid", "wready", "wdata", "wstrb", "wlast"),
    "b": ("bvalid", "bready", "bresp"),
    "ar": ("arvalid", "arready", "araddr", "arlen", "arid"),
    "r": ("rvalid", "rready", "rdata", "rid", "rlast"),
    "t": ("tvalid", "tready", "tdata", "tkeep", "tid", "tuser", "tlast"),
}


def page(config: RnicConfig) -> str:
    """Returns the data sheet of a device with these parameters, as HTML.

    Raises
    ------
    DeviceError
        The gateware did not do a step of the trial.
    """
    record = trial.run(config)
    estimated = estimate(config)
    parts = {
        "title": f"ddp-rnic, {config.width} bits",
        "version": f"ddp-rnic {__version__}",
        "options": ", ".join(
            f"{name} = {str(value).lower()}" for name, value in changed(config).items()
        )
        or "all parameters have their defaults",
        "summary": _summary(config, estimated),
        "purpose": _purpose(config),
        "diagram": diagram(config),
        "parameters": _parameters(config),
        "ports": _ports(config),
        "timing": "".join(_pictures(config, record)),
        "memory": str(trial.MEMORY),
        "latency": _latency(config, record),
        "rate": _rate(config, record) if config.receive else "",
        "area": _area(config, estimated),
        "error": f"{estimated.model.runs} runs of {estimated.model.tools}",
        "clock": _clock(config),
        "bring_up_c": escape(in_c(config)),
        "bring_up_python": escape(in_python(config)),
        "requests": _requests() if config.transmit else "",
        "completions": _fields(completion.FIELDS) + _numbers(completion.Kind, completion.Status),
        "octets": str(completion.OCTETS),
        "errors": _errors(config),
        "registers": _registers(config),
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def print_pdf(path: Path) -> Path | None:
    """Prints an HTML file as PDF beside it; returns None if there is no Chromium.

    Raises
    ------
    ToolError
        The browser failed.
    """
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        return None
    pdf = path.with_suffix(".pdf")
    with tempfile.TemporaryDirectory(prefix="rnic-browser-") as profile:
        command = [
            browser, "--headless", "--disable-gpu", f"--user-data-dir={profile}",
            *["--no-sandbox"] * (os.geteuid() == 0), "--no-pdf-header-footer",
            f"--print-to-pdf={pdf.resolve()}", path.resolve().as_uri(),
        ]  # fmt: skip
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=_LIMIT)
        except subprocess.SubprocessError as error:
            raise ToolError(f"{browser} could not print {path}: {error}") from None
    return pdf


# -- tables ---------------------------------------------------------------------------------------


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Returns a table; the cells are HTML."""
    head = "".join(f"<th>{each}</th>" for each in headings)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{escape(heading)}">{cell}</td>'
            for heading, cell in zip(headings, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _code(text: object) -> str:
    return f"<code>{escape(str(text))}</code>"


def _summary(config: RnicConfig, estimated: Estimate) -> str:
    figures = [
        (f"{config.width} bits", "in each cycle"),
        (f"{config.streams:,}", "DDP Streams"),
        (f"{config.stags:,}", "Steering Tags"),
        (f"{estimated.area.lut4:,}", "LUT4, estimated"),
        (f"{estimated.area.dp16kd:,}", "block RAMs"),
    ]
    return "".join(
        f"<div><b>{escape(number)}</b><span>{escape(text)}</span></div>" for number, text in figures
    )


def _purpose(config: RnicConfig) -> str:
    text = ""
    if config.receive:
        text += (
            "<p>The device places each DDP Segment into the host's memory after all checks, and"
            " reports each message once memory has answered for all of its octets.</p>"
        )
    if config.transmit:
        text += (
            "<p>It sends the messages that the host posts, as DDP Segments whose octets it reads"
            " from regions that allow that.</p>"
        )
    return text if config.receive else text + "<p>It does not receive.</p>"


def _parameters(config: RnicConfig) -> str:
    return _table(
        ("parameter", "value", "default", "range", "meaning"),
        (
            (
                _code(each.name),
                _code(str(getattr(config, each.name)).lower()),
                _code(str(each.default).lower()),
                escape(each.range),
                escape(each.doc),
            )
            for each in parameters()
        ),
        "stacked",
    )


def _ports(config: RnicConfig) -> str:
    of_bus = {port for bus in buses(config) for port in bus.ports.values()}
    single = [port for port in ports(config) if port not in of_bus]
    rows = [
        (
            _code(bus.name),
            bus.kind,
            "master" if bus.master else "slave",
            escape(bus.doc),
            ", ".join(_signal(name, port.width) for name, port in bus.ports.items()),
        )
        for bus in buses(config)
    ]
    rows += [
        (_code(port.name), "wire", "output" if port.output else "input", "", str(port.width))
        for port in single
    ]
    return _table(("port", "kind", "role", "use", "signals and bits"), rows, "stacked")


def _signal(name: str, width: int) -> str:
    return f"{_code(name)}&nbsp;{width}"


def _fields(fields: Iterable[Field]) -> str:
    return _table(
        ("octets", "bits", "field", "meaning"),
        (
            (
                _span(field.octet, field.octet + (field.bit + field.bits - 1) // 8),
                _span(field.bit, field.bit + field.bits - 1) if field.bits % 8 else "all",
                _code(field.name),
                escape(field.doc),
            )
            for field in fields
        ),
    )


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _numbers(*kinds: type[IntEnum] | type[IntFlag]) -> str:
    return "".join(
        f"<p>{_code(kind.__name__)}: "
        + ", ".join(f"{each.value} {_code(each.name)}" for each in kind)
        + "</p>"
        for kind in kinds
    )


def _requests() -> str:
    return (
        f"<p>An entry has {send.ENTRY} octets, a piece {send.PIECE_OCTETS}.</p>"
        + _fields(send.MESSAGE)
        + "<h3>A piece of a message</h3>"
        + _fields(send.PIECE)
        + "<p>The record of an FPDU, from bit 32 of TUSER on:</p>"
        + _fields(send.RECORD)
        + _numbers(send.Kind, send.Flag, completion.SentStatus)
    )


def _errors(config: RnicConfig) -> str:
    if not config.receive:
        return (
            "<p>A message that fails ends the sending half of its stream alone, and its completion"
            " says so.</p>"
        )
    text = "Each error ends its stream alone. It is kept as an event until the host reads it."
    return f"<p>{text}</p>" + _table(
        ("Error Type", "Error Code", "meaning"),
        (
            (
                f"{_code(f'{number.type:#x}')} {escape(number.type.name.lower())}",
                _code(f"{number.code:#04x}"),
                escape(text),
            )
            for number, text in (ddp.ERROR_TEXT | ddp.RESPONSE_TEXT).items()
        ),
    )


def _registers(config: RnicConfig) -> str:
    rows = []
    for register in sorted(registers(config), key=lambda each: each.address):
        fields = "".join(
            f"<li><b>{_span(field.low, field.low + field.bits - 1)}</b> {_code(field.name)}:"
            f" {escape(field.doc)}</li>"
            for field in register.fields
        )
        rows.append(
            (
                _code(f"{register.address:#05x}"),
                _code(register.name),
                register.access,
                escape(register.doc) + (f"<ul>{fields}</ul>" if fields else ""),
            )
        )
    return _table(("address", "register", "access", "meaning"), rows, "stacked")


# -- measured -------------------------------------------------------------------------------------


def _latency(config: RnicConfig, record: Trial) -> str:
    rows = []
    for llp in testbench.receiving(config):
        placed = record.after(f"{llp} WRITE_1", "m_axi_aw")
        delivered = record.after(f"{llp} SEND", "m_axi_cq_aw", trial.messages(config))
        to_entry = f"the address of its completion on {_code('m_axi_cq')}"
        rows += [
            (f"{llp}: last beat of a Write, to its address on {_code('m_axi')}", str(placed)),
            (f"{llp}: last beat of a Send, to {to_entry}", str(delivered)),
        ]
    if config.transmit:
        port = "m_axis" if config.mpa else "m_axis_eth"
        sent = record.after("doorbell", f"{port}_t")
        rows.append((f"write of the doorbell, to the first beat on {_code(port)}", str(sent)))
    return _table(("from, to", "cycles"), rows)


def _rate(config: RnicConfig, record: Trial) -> str:
    clock = next((each for each in clocks() if each.set == changed(config)), None)
    rows = []
    for llp, cycles in record.cycles_per_segment.items():
        bits = 8 * trial.PAYLOAD / cycles
        row = [llp, str(trial.PAYLOAD), f"{cycles:g}", f"{bits:.1f}"]
        rows.append([*row, *([f"{bits * clock.median / 1000:.1f} Gb/s"] if clock else [])])
    headings = ["LLP", "octets of payload", "cycles", "bits of payload per cycle"]
    table = _table([*headings, *(["at the median clock"] if clock else [])], rows)
    return f"<h3>Segments back to back</h3>{table}"


def _area(config: RnicConfig, estimated: Estimate) -> str:
    fits = devices(estimated)
    rows = [
        [
            name,
            f"{getattr(estimated.area, kind):,}",
            f"{estimated.model.errors[kind]:.1%}",
            *(f"{each.shares[kind]:.0%}" for each in fits),
        ]
        for kind, name in CELLS.items()
    ]
    rows.append(["verdict", "", "", *(_VERDICTS[each.fits] for each in fits)])
    new = untried(config)
    note = f"<p>No run had {escape(new)}: the error may be larger.</p>" if new else ""
    return _table(["cells", "estimate", "error", *(each.device for each in fits)], rows) + note


def _clock(config: RnicConfig) -> str:
    rows = [
        (
            escape(", ".join(f"{name} = {str(value).lower()}" for name, value in each.set.items()))
            or "all defaults",
            f"{each.median:g}",
            f"{min(each.mhz):g} to {max(each.mhz):g}",
            str(len(each.mhz)),
            each.device,
            escape(each.tools),
            "this one" if each.set == changed(config) else "another one",
        )
        for each in clocks()
    ]
    return _table(
        ("parameters", "median MHz", "MHz", "seeds", "device", "tools", "configuration"), rows
    )


# -- timing pictures ------------------------------------------------------------------------------


def _pictures(config: RnicConfig, record: Trial) -> Iterator[str]:
    """Yields a picture for each bus that the trial used, and direction of it."""
    for bus in buses(config):
        if bus.kind == "AXI4Stream":
            yield from _picture(bus, record, "packet", "t", "t")
        else:
            yield from _picture(bus, record, "write", "aw", "w", "b")
            yield from _picture(bus, record, "read", "ar", "r")


def _picture(bus: Bus, record: Trial, what: str, *channels: str) -> Iterator[str]:
    """Yields the picture of the first burst, or of the shortest packet, if there was any."""
    names = [
        f"{bus.name}_{signal}"
        for channel in dict.fromkeys(channels)
        for signal in _CHANNELS[channel]
        if signal.upper() in bus.ports
    ]
    if f"{bus.name}_{channels[0]}valid" not in names:
        return
    begun = record.transfers(f"{bus.name}_{channels[0]}")
    if not begun:
        return
    # Data may come before their address.
    first = min(record.transfers(f"{bus.name}_{channel}")[0] for channel in channels)
    ends = [at for at in record.transfers(f"{bus.name}_{channels[-1]}") if at >= begun[0]]
    if (last := f"{bus.name}_{channels[-1]}last") in names:
        values = record.values(last)
        ends = [at for at in ends if values[at]]
    end = ends[0]
    if channels == ("t",):  # the shortest packet
        firsts = [first, *(next(at for at in begun if at > before) for before in ends[:-1])]
        first, end = min(zip(firsts, ends, strict=True), key=lambda pair: pair[1] - pair[0])
    end = min(end, first + _MOST)
    svg = timing(record, names, first - _AROUND, end + _AROUND)
    caption = f"{_code(bus.name)}, {bus.kind}: a {what}"
    yield f'<figure><figcaption>{caption}</figcaption><div class="scroll">{svg}</div></figure>'


# -- the sequence that brings the device up -------------------------------------------------------


class Call(NamedTuple):
    """A call of a function of ``hdl/spec/commands.py``, and its purpose."""

    purpose: str
    function: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def steps(self) -> Sequence[Write | Wait]:
        steps: Sequence[Write | Wait] = getattr(commands, self.function)(
            *self.arguments, **self.options
        )
        return steps

    def __str__(self) -> str:
        given = [*map(_literal, self.arguments)]
        given += [f"{name}={_literal(value)}" for name, value in self.options.items()]
        return f"{self.function}({', '.join(given)})"


def _literal(value: Any) -> str:
    """Returns a value as Python writes it, and a large number in hexadecimal digits."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if hasattr(value, "_asdict"):
        inner = (f"{name}={_literal(each)}" for name, each in value._asdict().items())
        return f"{type(value).__name__}({', '.join(inner)})"
    return f"{value:#x}" if type(value) is int and value > 0xFF else repr(value)


def _types(values: Iterable[Any]) -> Iterator[type]:
    """Yields the types that a literal of some values names."""
    for value in values:
        if isinstance(value, Enum) or hasattr(value, "_asdict") or is_dataclass(value):
            yield type(value)
        if hasattr(value, "_asdict"):
            yield from _types(value)


def calls(config: RnicConfig) -> list[Call]:
    """Returns the calls that bring the device up: completions, a region, a stream, a buffer."""
    return [Call(*each) for each in testbench.bring_up(config)]


def in_python(config: RnicConfig) -> str:
    """Returns the sequence as Python, for functions ``read`` and ``write`` of a link."""
    found = calls(config)
    used = sorted({each.function for each in found})
    named = sorted({
        (kind.__module__, kind.__name__)
        for each in found
        for kind in _types((*each.arguments, *each.options.values()))
    })  # fmt: skip
    lines = [
        f"from ddp_rnic.hdl.spec.commands import Write, {', '.join(used)}",
        *(f"from {module} import {name}" for module, name in named),
        "",
        "def give(steps):",
        "    for step in steps:",
        "        if isinstance(step, Write):",
        "            write(step.address, step.value)",
        "        else:",
        "            while read(step.address) & step.mask != step.value:",
        "                pass",
        "",
    ]
    for each in found:
        lines += [f"# {each.purpose}", f"give({each})"]
    return "\n".join([*lines, ""])


def in_c(config: RnicConfig) -> str:
    """Returns the sequence as C, with the names of ``rnic.h``."""
    lines = [
        '#include "rnic.h"',
        "",
        "/* The host's link to s_axil. */",
        "uint32_t rnic_read(uint32_t address);",
        "void rnic_write(uint32_t address, uint32_t value);",
        "",
        "void rnic_bring_up(void)",
        "{",
    ]
    for each in calls(config):
        lines.append(f"    /* {each.purpose} */")
        for step in each.steps:
            register, value = f"RNIC_{step.register}", f"{step.value:#x}u"
            if isinstance(step, Write):
                lines.append(f"    rnic_write({register}, {value});")
            else:
                lines.append(
                    f"    while ((rnic_read({register}) & {step.mask:#x}u) != {value}) {{ }}"
                )
    return "\n".join([*lines, "}", ""])
