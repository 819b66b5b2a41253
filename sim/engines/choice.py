"""The engines that there are, by name."""

from __future__ import annotations

from .engine import Engine

#: Names of the engines, the default first.
ENGINES = ("compiled", "cocotb")


def load(name: str) -> Engine:
    """Returns the engine of a name in :data:`ENGINES`."""
    if name == "compiled":
        from .compiled import CompiledEngine

        return CompiledEngine()
    if name == "cocotb":
        from .cocotb_engine import CocotbEngine

        return CocotbEngine()
    raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {name!r}")
