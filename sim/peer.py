"""Other projects' blocks in Verilog, placed and routed as our own are, to be compared with them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Peer"]

_PARAMETER = re.compile(r"(\w+)=(-?\d+|\d+'[bdh][0-9a-fA-F_]+|\"[^\"]*\")")


@dataclass(frozen=True)
class Peer:
    """A module of a Verilog or SystemVerilog file, with what its parameters are set to."""

    path: Path
    top: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, text: str) -> Peer:
        """From ``FILE:TOP`` or ``FILE:TOP:NAME=VALUE,...``.

        Raises
        ------
        ValueError
            It is not of this form, or the file has no such module.
        """
        name, _, rest = text.partition(":")
        top, _, settings = rest.partition(":")
        found = [_PARAMETER.fullmatch(each) for each in settings.split(",") if each]
        if not name or not re.fullmatch(r"\w+", top) or None in found:
            raise ValueError(
                f"a peer must be FILE:TOP or FILE:TOP:NAME=VALUE,NAME=VALUE, not {text!r}"
            )
        path = Path(name)
        try:
            verilog = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read the peer's file {name}: {_why(error)}") from None
        if not re.search(rf"^\s*module\s+{top}\b", verilog, re.MULTILINE):
            raise ValueError(f"{name} has no module {top}")
        return cls(path, top, tuple((each[1], each[2]) for each in found if each))

    @property
    def name(self) -> str:
        """What tables call it."""
        return " ".join([self.top, *(f"{name}={value}" for name, value in self.parameters)])

    @property
    def verilog(self) -> str:
        return self.path.read_text(encoding="utf-8")


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not text"
