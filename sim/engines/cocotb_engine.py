"""The cocotb engine: runs the same Verilog, in the bench that users read and extend.

The simulation is a separate process. Operations and host memory are passed to it in files.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ...hdl.spec.config import RnicConfig
from . import verilator
from .engine import UNSTALLED, DeviceError, Engine, Operation, Outcome, Ring, Stalls, checked
from .waves import Recorder, Waves

#: The files in which cocotb explains failed assertions. By default these are all files that a test
#: imports, numpy's among them, which takes a third of a short run.
_REWRITTEN = {"COCOTB_REWRITE_ASSERTION_FILES": "*_tests.py"}


class CocotbEngine(Engine):
    """Runs cocotb with the bus models of cocotbext-axi, on Verilator.

    It reports progress only at the end. ``response_latency`` is that of the bus model.
    """

    name = "cocotb"

    def run(
        self,
        config: RnicConfig,
        operations: Iterable[Operation],
        memory: NDArray[np.uint8],
        *,
        ring: Ring | None = None,
        stalls: Stalls = UNSTALLED,
        faults: Sequence[range] = (),
        base: int = 0,
        waves: Waves | None = None,
        progress: Callable[[int, int], None] | None = None,
        part: Callable[[Outcome], bool] | None = None,
    ) -> Outcome:
        # Imported here, because cocotb may be missing where this engine is not used.
        from .cocotb_run import DIRECTORY, MEMORY, OUTCOME, PLAN

        if config.transmit:
            raise ValueError("the cocotb engine has no ports for a device that sends")
        operations = [*checked(config, operations, memory, ring, base)]
        with tempfile.TemporaryDirectory(prefix="ddp-rnic-") as name:
            directory = Path(name)
            plan = operations, ring, stalls, list(faults), base
            (directory / PLAN).write_bytes(pickle.dumps(plan))
            memory.tofile(directory / MEMORY)
            run_tests(
                config, "ddp_rnic.sim.engines.cocotb_run", directory, 1,
                environment={DIRECTORY: name}, waves=waves,
            )  # fmt: skip
            memory[:] = np.fromfile(directory / MEMORY, np.uint8)
            outcome = pickle.loads((directory / OUTCOME).read_bytes())
        if progress is not None:
            progress(len(operations), len(operations))
        assert isinstance(outcome, Outcome)
        return outcome


def run_tests(
    config: RnicConfig,
    module: str,
    directory: Path,
    count: int,
    *,
    environment: Mapping[str, str] | None = None,
    waves: Waves | None = None,
) -> None:
    """Runs the cocotb tests of a module on the gateware.

    Parameters
    ----------
    config
        The configuration of the gateware.
    module
        Import name of the module.
    directory
        The folder for the log and the results.
    count
        How many tests have to run.
    environment
        Variables for the tests' environment.
    waves
        The waveform to be written: all parts and cycles.

    Raises
    ------
    DeviceError
        A test failed, or another number of tests ran.
    """
    run_tests_on(
        verilator.verilog(config), module, directory, count, environment=environment, waves=waves
    )


def run_tests_on(
    text: str,
    module: str,
    directory: Path,
    count: int,
    *,
    environment: Mapping[str, str] | None = None,
    waves: Waves | None = None,
    netlist: bool = False,
) -> None:
    """Does the work of :func:`run_tests` on the Verilog of a module ``rnic``, which has a
    port ``rst``.
    """
    from cocotb_tools.runner import get_runner

    if waves is not None and (waves.parts or waves.cycles is not None):
        raise ValueError("the cocotb engine shows all parts and cycles in a waveform")
    executable = verilator.build_cocotb(text, waves=waves is not None, netlist=netlist)
    results, log = directory / "results.xml", directory / "sim.log"
    recorder = None if waves is None else Recorder(waves.path, text)
    # The facts about a failure are in the results or, if there are none, in the log.
    with suppress(SystemExit, RuntimeError):
        get_runner("verilator").test(
            test_module=module, hdl_toplevel=verilator.TOP, hdl_toplevel_lang="verilog",
            build_dir=executable.parent, test_dir=directory, results_xml=str(results),
            log_file=log, extra_env={**_REWRITTEN, **(environment or {})}, waves=waves is not None,
            test_args=[] if recorder is None else ["--trace-file", str(recorder.pipe)],
        )  # fmt: skip
    if recorder is not None:
        recorder.close()
    if not results.exists():
        raise DeviceError(f"the simulation gave no results:\n{_tail(log)}")
    cases = list(ElementTree.parse(results).iter("testcase"))
    for case in cases:
        for failure in [*case.iter("failure"), *case.iter("error")]:
            raise DeviceError(f"{case.get('name')}: {failure.get('message')}\n{_tail(log)}")
    if len(cases) != count:
        raise DeviceError(f"{len(cases)} tests of {module} ran, not {count}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:]) if log.exists() else ""
