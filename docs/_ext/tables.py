"""Tables from the project's own data: registers, errors, commands, and normative sentences."""

from __future__ import annotations

import csv
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from ddp_rnic.cli.app import app as rnic
from ddp_rnic.hdl.spec import ddp
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
#: What the page calls each holder of ``tests/requirements.csv``.
HOLDERS = {
    "datapath": "gateware",
    "model": "golden model",
    "driver": "driver",
    "manager": "resource manager",
    "host": "the host",
    "llp": "the LLP below",
    "ulp": "the ULP above",
    "nobody": "nobody yet",
}


_HEAD = """<div class="sentences"><p><input type="search" class="sentences-search"
placeholder="Search: 7.1, STag, model, test_..." aria-label="Search the sentences">
<span class="sentences-count"></span></p><table><thead><tr><th>sentence</th>
<th>what it demands</th><th>what holds it</th></tr></thead><tbody>"""


def cell(text: str) -> str:
    """Returns a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def registers(source: str) -> Iterator[str]:
    """Yields a register map, ``hdl.spec.regs:REGISTERS``, and a drawing of each with fields."""
    module_name, _, name = source.partition(":")
    module = import_module(f"ddp_rnic.{module_name}")
    found = sorted(getattr(module, name), key=lambda each: each.address)
    yield from ("| address | register | access | meaning |", "|---|---|---|---|")
    for each in found:
        shown = (
            f"[`{each.name}`](#{_anchor(source, each.name)})" if each.fields else f"`{each.name}`"
        )
        # A board has registers of its own, which each of them has.
        access = each.access
        if module_name.endswith("regs"):
            sends = "answers" if each.responder else "sends"
            access += ", SCTP" * each.sctp + ", receives" * each.receive
            access += f", {sends}" * each.transmit
        yield f"| `{each.address:#05x}` | {shown} | {access} | {cell(each.doc)} |"
    for each in found:
        if not each.fields:
            continue
        yield from ("", f"({_anchor(source, each.name)})=", f"### {each.name}", "", each.doc, "")
        yield from (f"```{{fields}} {source}.{each.name}", "```", "")
        yield from ("| bits | field | meaning |", "|---|---|---|")
        for field in each.fields:
            high = field.low + field.bits - 1
            bits = f"{high}:{field.low}" if field.bits > 1 else f"{high}"
            yield f"| {bits} | `{field.name}` | {cell(field.doc)} |"


def _anchor(source: str, name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", f"{source} {name}".lower())


def errors() -> Iterator[str]:
    """Yields the errors that the device reports."""
    yield from ("| Error Type | Error Code | meaning |", "|---|---|---|")
    for number, text in (ddp.ERROR_TEXT | ddp.RESPONSE_TEXT).items():
        kind = f"`{number.type:#x}` {number.type.name.lower()}"
        yield f"| {kind} | `{number.code:#04x}` | {text} |"


def commands() -> Iterator[str]:
    """Yields every command of ``rnic`` with its arguments and options."""
    group: Any = typer.main.get_command(rnic)
    context = group.make_context("rnic", [], resilient_parsing=True)
    yield from _commands("rnic", group, context)


def _commands(parent: str, group: Any, context: Any) -> Iterator[str]:
    """Yields the commands of a group, and those of the groups among them."""
    for each in group.list_commands(context):
        command, name = group.get_command(context, each), f"{parent} {each}"
        if hasattr(command, "list_commands"):
            yield from _commands(name, command, context)
            continue
        arguments = (each for each in command.params if not _is_option(each))
        usage = [
            word.upper() if required else f"[{word.upper()}]"
            for word, required in ((each.name, each.required) for each in arguments)
        ]
        yield from ("", f"({name.replace(' ', '-')})=", f"## {name}", "", "```text")
        yield from (" ".join([name, *usage, "[OPTIONS]"]), "```", "")
        yield from (command.help or "", "", "| argument or option | meaning |", "|---|---|")
        yield from (_parameter(each) for each in command.params if not _hidden(each))


def _is_option(parameter: Any) -> bool:
    return parameter.opts[0].startswith("-")


def _hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False)) or parameter.name == "help"


def _parameter(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    shown = ", ".join(names if _is_option(parameter) else [names[0].upper()])
    flag = getattr(parameter, "is_flag", False)
    if _is_option(parameter) and not flag:
        shown += f" {parameter.metavar or 'VALUE'}"
    text = cell(parameter.help or "")
    default = parameter.default
    if default is not None and not flag and "Default:" not in text and not callable(default):
        text += f" Default: {getattr(default, 'value', default)}."
    return f"| `{cell(shown)}` | {text} |"


def _rows() -> list[dict[str, str]]:
    with (ROOT / "tests" / "requirements.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def totals() -> Iterator[str]:
    """Yields how many of the sentences each part of the project holds."""
    held = Counter(row["holder"] for row in _rows())
    yield from ("| held by | sentences |", "|---|---|")
    yield from (f"| {name} | {held[key]} |" for key, name in HOLDERS.items())
    yield f"| all | {sum(held.values())} |"


class Sentences(SphinxDirective):
    """Shows the normative sentences, each with its tests and the violations that they notice."""

    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        tests = ROOT / "tests"
        sources = tests / "requirements.csv", tests / "violations.toml", ROOT / "docs/sentences.csv"
        for path in sources:
            self.env.note_dependency(str(path))
        violations: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for each in tomllib.loads(sources[1].read_text(encoding="utf-8"))["violation"]:
            for sentence in each["sentences"]:
                violations[sentence].append(each)
        with sources[2].open(encoding="utf-8", newline="") as file:
            texts = {row["id"]: row for row in csv.DictReader(file)}
        parts = [_HEAD]
        for row in _rows():
            parts += _sentence(row, texts[row["id"]], violations[row["id"]])
        parts.append("</tbody></table></div>")
        return [nodes.raw("", "".join(parts), format="html")]


def _sentence(
    row: dict[str, str], text: dict[str, str], violations: list[dict[str, Any]]
) -> Iterator[str]:
    url = f"https://www.rfc-editor.org/rfc/rfc{text['rfc']}#section-{text['section']}"
    yield f'<tr id="s-{escape(row["id"])}"><td><a href="{escape(url)}">{escape(row["id"])}</a>'
    yield f'<br><span class="level">{escape(text["level"])}</span></td>'
    yield f'<td class="sentence">{escape(text["sentence"])}</td>'
    yield f'<td><p><b class="holder">{escape(HOLDERS[row["holder"]])}</b>'
    yield f": {escape(row['why'])}</p>" if row["why"] else "</p>"
    names = row["evidence"].split()
    if names:
        noun = "test" if len(names) == 1 else "tests"
        yield f"<details><summary>{len(names)} {noun}</summary><ul>"
        for name in names:
            path, _, function = name.partition("::")
            yield f"<li><code>{_breakable(function)}</code><br><small>{_breakable(path)}</small>"
        yield "</ul></details>"
    if violations:
        noun = "violation" if len(violations) == 1 else "violations"
        yield f"<details><summary>{len(violations)} {noun} that these tests notice</summary><ul>"
        for each in violations:
            yield f"<li>{escape(each['does'])}<br><small>{_breakable(each['file'])}, noticed by "
            failing = (_breakable(name.partition("::")[2]) for name in each["tests"])
            yield ", ".join(f"<code>{name}</code>" for name in failing) + "</small>"
        yield "</ul></details>"
    yield "</td></tr>"


def _breakable(name: str) -> str:
    """Lets a browser break a long name at its underscores."""
    return escape(name).replace("_", "_<wbr>").replace("/", "/<wbr>")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("sentences", Sentences)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
