"""Rewrites the gateware's Verilog so that its simulation does less work and behaves the same.

:func:`let_sleep` stops the clock of instances in which nothing happens. This makes the 64-bit
device about 1.5 times as fast. The function understands only Verilog that Amaranth wrote, and
raises :class:`~ddp_rnic.flow.tools.ToolError` for a register that it cannot find.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import count

from ...flow.tools import ToolError

_MODULE = re.compile(r"^module (\\\S+|\w+) ?\((.*?)\);\n(.*?)^endmodule$", re.DOTALL | re.MULTILINE)
#: Instances, and parts of instances, that have nothing to do in most cycles. The list changes only
#: the speed of the simulation. It may hold any instance that is no part of another one in the list.
_SLEEPERS = (
    "commit",
    "control.registers",
    "cut",
    "delivery",
    "dma.bursts",
    "dma.prepare",
    "exceptions.ring",
    "reports",
    "tagged",
    "untagged",
)
#: The names of these instances' modules begin with this prefix. Each instance has its own module.
_ROOT = "\\rnic.rnic."


def let_sleep(verilog: str, bench: str) -> str:
    """Returns the Verilog with instances that see no clock edge while nothing happens in them.

    ``verilog`` is the text of the gateware. ``bench`` is the name of the module around the
    gateware: its ``clk`` is the clock of the whole design, and its ``late`` changes in each cycle
    before the edge, after all inputs have arrived. The design must not use its reset.

    If an edge changes no register of an instance and writes to none of its memories, then the next
    edge has no effect either, unless an input changes. So each module of an instance stores the
    previous values of its registers, and the outermost module also the previous inputs. The
    instance is awake only if one of these values differs. Verilator evaluates logic only if its
    sources saw an edge, so a sleeping instance costs no more than the comparison of its inputs.
    Most of the gateware sleeps while a segment passes.

    An instance that writes to a memory in every cycle can never sleep. Its parts may still sleep.
    """
    modules: dict[str, _Module] = {}
    for found in _MODULE.finditer(verilog):
        modules[found[1]] = _Module(found, modules)
    rewritten: dict[str, str] = {}
    sleepers = [
        name for name in modules if re.sub(r"\$\d+$", "", name).removeprefix(_ROOT) in _SLEEPERS
    ]
    for name in sleepers:
        if modules[name].sleeps:
            rewritten.update(_asleep(modules, name, bench))
        else:
            sleepers += (part for part, _ in modules[name].parts)
    return _MODULE.sub(lambda found: rewritten.get(found[1], found[0]), verilog)


_NAME = re.compile(r"\\\S+|\b[A-Za-z_]\w*")
_DECLARED = re.compile(r"^  (?:\(\*|(?:input|output|wire|reg) ).*\n", re.MULTILINE)
_INPUT = re.compile(r"^  input (\[\d+:0\] )?(\\\S+|\w+) ?;", re.MULTILINE)
_OUTPUT = re.compile(r"^  output (?:\[\d+:0\] )?(\\\S+|\w+) ?;", re.MULTILINE)
_REGISTER = re.compile(r"^  reg (\[\d+:0\] )?(\\\S+|\w+) *(?:= (\S+))?;", re.MULTILINE)
_MEMORY = re.compile(r"^  reg \[\d+:0\] (\\\S+|\w+) +\[\d+:0\];", re.MULTILINE)
_WIRE = re.compile(r"^  assign (\\\S+|\w+) *(?:\[[\d:]+\] )?= (.*);\n", re.MULTILINE)
_PART = re.compile(r"^  (\\\S+|\w+) +(?:\\\S+|\w+) +\(\n(.*?)\n  \);\n", re.DOTALL | re.MULTILINE)
_PORT = re.compile(r"^    \.(\\\S+|\w+) ?\((.*)\),?$", re.MULTILINE)
_CLOCKED = re.compile(
    r"^  always @\(posedge clk\)(?: begin\n.*?^  end|\n[^\n]*;)\n", re.DOTALL | re.MULTILINE
)
_SET = re.compile(r"^ +(?!if |else |case)(.*?) *<= .*;$", re.MULTILINE)
#: A process that only writes to a memory. Its group is the condition of the write.
_STORE = re.compile(
    r"^  always @\(posedge clk\) begin\n"
    r"    if \((.*)\)\n      (?:\\\S+ +|\w+)\[.*\] <= .*;\n  end\n",
    re.MULTILINE,
)
#: The condition of a write to a memory from any other process: such a write may always happen.
_ALWAYS = "1'h1"


class _Module:
    """A module of the Verilog, with the facts that its text states."""

    def __init__(self, found: re.Match[str], modules: Mapping[str, _Module]) -> None:
        self._modules = modules
        self.name, self.ports, self.body = found[1], found[2], found[3]
        #: The size of each input, by the input's name.
        self.inputs = {name: size for size, name in _INPUT.findall(self.body)}
        #: The name of each module inside this one, with the expression that each port is connected
        #: to.
        self.parts = [
            (part, dict(_PORT.findall(ports))) for part, ports in _PART.findall(self.body)
        ]

    @cached_property
    def state(self) -> tuple[dict[str, tuple[str, str]], list[str]]:
        """The registers of the module, each with size and initial value, and the write conditions.

        A write condition is an expression that is true in each cycle that writes to a memory.

        Raises :class:`ToolError` if the module sets a name that it does not declare.
        """
        declared = {name: (size, initial) for size, name, initial in _REGISTER.findall(self.body)}
        memories = _MEMORY.findall(self.body)
        registers: dict[str, tuple[str, str]] = {}
        writes = _STORE.findall(self.body)
        for process in _CLOCKED.findall(_STORE.sub("", self.body)):
            for target in _SET.findall(process):
                for name in _NAME.findall(re.sub(r"\[[^]]*\]*", "", target)):
                    if name in memories:
                        writes.append(_ALWAYS)
                    elif name in declared:
                        registers[name] = declared[name]
                    else:
                        raise ToolError(f"{self.name} sets an undeclared name: {target}")
        return registers, writes

    @property
    def sleeps(self) -> bool:
        """True if the module can sleep: no memory inside it is written to in every cycle.

        A delay line, for example, writes to its memory in every cycle.
        """
        return _ALWAYS not in self.state[1] and all(
            self._modules[part].sleeps for part, _ in self.parts
        )

    @cached_property
    def needed(self) -> set[str]:
        """The names that can change the module's state or outputs while it writes to no memory.

        Names that only feed the address or data of a write are not among them.
        """
        text = _DECLARED.sub("", _PART.sub("", self.body))
        sources: dict[str, list[str]] = {}
        for target, value in _WIRE.findall(text):
            sources.setdefault(target, []).extend(_NAME.findall(value))
        text = _STORE.sub(lambda store: store[1], _WIRE.sub("", text))
        pending = [*_NAME.findall(text), *_OUTPUT.findall(self.body)]
        for part, ports in self.parts:
            for port, value in ports.items():
                if port in self._modules[part].needed:
                    pending += _NAME.findall(value)
        names: set[str] = set()
        while pending:
            name = pending.pop()
            names.add(name)
            pending += sources.pop(name, ())
        return names


class _Kept:
    """The values that a module stores at each edge that it sees."""

    def __init__(self) -> None:
        self._declared = self._clocked = ""
        self._number = count()

    def keep(self, value: str, size: str = "", initial: str = "") -> str:
        """Adds a register that stores a value at each edge, and returns the register's name."""
        name = f"_kept{next(self._number)}"
        self._declared += f"  reg {size}{name} = {initial or 0};\n"
        self._clocked += f"    {name} <= {value} ;\n"
        return name

    def text(self) -> str:
        """Returns the Verilog of these registers and of the process that sets them."""
        return f"{self._declared}  always @(posedge clk) begin\n{self._clocked}  end\n"


def _asleep(modules: Mapping[str, _Module], outside: str, bench: str) -> Iterator[tuple[str, str]]:
    """Yields the name and new text of an instance's module and of each module inside it.

    With the new text these modules see an edge only while the instance is awake.
    """
    instance = ".".join(f"\\{part} " for part in outside.removeprefix(_ROOT).split("."))
    edge = f"posedge {bench}.clk iff {bench}.rnic.rnic.{instance}._awake"
    pending = [outside]
    for name in pending:
        module = modules[name]
        pending += (part for part, _ in module.parts)
        registers, writes = module.state
        kept = _Kept()
        stirs = [
            f"({register} != {kept.keep(register, size, initial)})"
            for register, (size, initial) in registers.items()
        ]
        stirs += [kept.keep(f"|({when})") for when in writes]
        stirs += [f"_stirs{index}" for index in range(len(module.parts))]
        wakes = ""
        if name == outside:
            stirs.append(f"~{kept.keep('1')}")  # the instance has seen no edge
            changes = " | ".join(
                f"({port} != {kept.keep(port, size)})"
                for port, size in module.inputs.items()
                if port not in ("clk", "rst") and port in module.needed
            )
            wakes = (
                "  reg _awake = 1;\n"
                f"  always @(posedge {bench}.late or negedge {bench}.late) begin\n"
                f"    _awake <= {changes or 0};\n"
                "    if (_awake)\n"
                "      if (_stirs) _awake <= 1;\n"
                "  end\n"
            )
        body = module.body
        for index, part in enumerate(_PART.finditer(body)):
            connected = f"{part[0][:-6]},\n    ._stirs(_stirs{index})\n  );\n"
            body = body.replace(part[0], connected, 1)
        text = (
            f"module {module.name} ({module.ports}, _stirs);\n"
            "  output _stirs;\n"
            + "".join(f"  wire _stirs{index};\n" for index in range(len(module.parts)))
            + f"{body}{kept.text()}  assign _stirs = {' | '.join(stirs) or 0};\n{wakes}endmodule"
        )
        yield name, text.replace("posedge clk", edge)
