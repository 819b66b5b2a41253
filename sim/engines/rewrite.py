"""Rewrites the gateware's Verilog so that its simulation does less work and behaves the same.

:func:`let_sleep` stops the clock of instances in which nothing happens, which makes the 64-bit
device about 1.5 times as fast. It knows Verilog as Amaranth writes it, and refuses any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import count

from ...flow.tools import ToolError

_MODULE = re.compile(r"^module (\\\S+|\w+) ?\((.*?)\);\n(.*?)^endmodule$", re.DOTALL | re.MULTILINE)
#: Instances, and parts of them, that have nothing to do in most cycles. Only how fast the
#: simulation is hangs on it: any may be here, as long as none is a part of another.
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
#: What the names of these instances' modules begin with; one to an instance.
_ROOT = "\\rnic.rnic."


def let_sleep(verilog: str, bench: str) -> str:
    """The Verilog with instances that see no edge of the clock while nothing happens in them.

    If an edge leaves an instance's registers as they were, and writes to no memory of it, then so
    does the next one, unless an input changes. So modules of an instance remember what registers
    were, and the outermost what its inputs were: from that it is known whether it has to be awake.
    Verilator looks at logic only if what feeds it saw an edge: asleep, an instance costs no more
    than the comparison of its inputs. While a segment passes, most of the gateware is asleep.

    Where an instance cannot ever sleep, its parts may.

    ``bench`` is the module around: its ``clk`` is the clock of all, and its ``late`` changes in
    each cycle before the edge, when all inputs are there. There is no reset.
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
#: A process that does nothing but write to a memory: when.
_STORE = re.compile(
    r"^  always @\(posedge clk\) begin\n"
    r"    if \((.*)\)\n      (?:\\\S+ +|\w+)\[.*\] <= .*;\n  end\n",
    re.MULTILINE,
)
#: When a memory is written to by any other process: it may be always.
_ALWAYS = "1'h1"


class _Module:
    """A module, and what its text says of it."""

    def __init__(self, found: re.Match[str], modules: Mapping[str, _Module]) -> None:
        self._modules = modules
        self.name, self.ports, self.body = found[1], found[2], found[3]
        #: Its inputs, and their sizes.
        self.inputs = {name: size for size, name in _INPUT.findall(self.body)}
        #: The modules in it, and what their ports are connected to.
        self.parts = [
            (part, dict(_PORT.findall(ports))) for part, ports in _PART.findall(self.body)
        ]

    @cached_property
    def state(self) -> tuple[dict[str, tuple[str, str]], list[str]]:
        """Its registers, each with size and initial value, and when it writes to memories."""
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
                        raise ToolError(f"{self.name}: cannot tell what is set: {target}")
        return registers, writes

    @property
    def sleeps(self) -> bool:
        """Whether it ever can: no memory in it is written to in every cycle, as a delay line's."""
        return _ALWAYS not in self.state[1] and all(
            self._modules[part].sleeps for part, _ in self.parts
        )

    @cached_property
    def needed(self) -> set[str]:
        """What matters in it while its memories are not written to: all but what that would be."""
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
    """What a module remembers of the last edge that it saw."""

    def __init__(self) -> None:
        self._declared = self._clocked = ""
        self._number = count()

    def keep(self, value: str, size: str = "", initial: str = "") -> str:
        """The name of what a value was at that edge."""
        name = f"_kept{next(self._number)}"
        self._declared += f"  reg {size}{name} = {initial or 0};\n"
        self._clocked += f"    {name} <= {value} ;\n"
        return name

    def text(self) -> str:
        """Its registers, and their process."""
        return f"{self._declared}  always @(posedge clk) begin\n{self._clocked}  end\n"


def _asleep(modules: Mapping[str, _Module], outside: str, bench: str) -> Iterator[tuple[str, str]]:
    """An instance and its parts, each with its new text: they see an edge only if it is awake."""
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
            stirs.append(f"~{kept.keep('1')}")  # it has seen no edge
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
