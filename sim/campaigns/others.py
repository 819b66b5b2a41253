"""Places and routes blocks of other projects in Verilog, for comparison with this project's
blocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...flow import pnr
from ..capture.given import read_text

__all__ = ["Peer"]

_PARAMETER = re.compile(r"(\w+)=(-?\d+|\d+'[bdh][0-9a-fA-F_]+|\"[^\"]*\")")


@dataclass(frozen=True)
class Peer:
    """A module of a Verilog or SystemVerilog file, with the values of its parameters."""

    path: Path
    top: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Peer:
        """Parses ``FILE:TOP`` or ``FILE:TOP:NAME=VALUE,...``.

        Raises
        ------
        ValueError
            The text has another form, or the file has no such module.
        """
        name, _, rest = text.partition(":")
        top, _, settings = rest.partition(":")
        found = [_PARAMETER.fullmatch(each) for each in settings.split(",") if each]
        if not name or not re.fullmatch(r"\w+", top) or None in found:
            raise ValueError(
                f"a peer must be FILE:TOP or FILE:TOP:NAME=VALUE,NAME=VALUE, not {text!r}"
            )
        path = Path(name)
        verilog = read_text(path)
        if not re.search(rf"^\s*module\s+{top}\b", verilog, re.MULTILINE):
            raise ValueError(f"{name} has no module {top}")
        return cls(path, top, tuple((each[1], each[2]) for each in found if each))

    def check(self) -> None:
        """Checks that yosys can elaborate the module, and that the module has a port ``clk``.

        Raises
        ------
        ValueError
            It cannot, or the port is missing. The message contains yosys' error.
        ToolError
            yosys is not installed.
        """
        try:
            ports = pnr.ports_of(
                self.verilog, self.top, parameters=self.parameters, systemverilog=self.systemverilog
            )
        except pnr.VerilogError as error:
            raise ValueError(f"{self.path}, module {self.top}: {error}") from None
        if "clk" not in ports:
            raise ValueError(f"{self.path}: module {self.top} must have a port named clk")

    @property
    def systemverilog(self) -> bool:
        return self.path.suffix == ".sv"

    @property
    def name(self) -> str:
        """The module's name in tables."""
        return " ".join([self.top, *(f"{name}={value}" for name, value in self.parameters)])

    @property
    def verilog(self) -> str:
        return self.path.read_text(encoding="utf-8")
