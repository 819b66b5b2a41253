"""The registers behind a board's host link, for other tools."""

import csv
import io
import json
from dataclasses import asdict

from ..hdl.spec import board as spec
from ..hdl.spec import regs

__all__ = ["as_csv", "as_json"]


def _registers(board):
    """Window, register and address of each."""
    tcp = spec.TCP_REGISTERS if board.connections else ()
    for window, registers in (
            (spec.RNIC, regs.REGISTERS), (spec.BOARD, (*spec.REGISTERS, *tcp))):
        for register in registers:
            yield window, register, window.address + register.address


def as_json(board):
    """Windows, registers and fields with what they mean, and what this board has."""
    return json.dumps({
        "board": board.name,
        "baud": board.baud,
        "rnic": asdict(board.config),
        "windows": [asdict(window) for window in spec.WINDOWS],
        "registers": [
            {"window": window.name, **asdict(register), "address": address}
            for window, register, address in _registers(board)
        ],
    }, indent=1) + "\n"


def as_csv(board):
    """LiteX's ``csr.csv``, which litex_server and its clients read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for window in (spec.RNIC, spec.BOARD):
        writer.writerow(["csr_base", window.name.lower(), f"{window.address:#010x}", "", ""])
    for window, register, address in _registers(board):
        # LiteX knows of registers that are read only, and of others.
        access = "ro" if register.access == "ro" else "rw"
        name = f"{window.name}_{register.name}".lower()
        writer.writerow(["csr_register", name, f"{address:#010x}", 1, access])
    writer.writerow(["constant", "config_clock_frequency", board.clock, "", ""])
    writer.writerow(["constant", "config_csr_data_width", 32, "", ""])
    sizes = {spec.MEMORY.name: board.memory}
    for window in spec.WINDOWS[2:]:
        writer.writerow([
            "memory_region", window.name.lower(), f"{window.address:#010x}",
            sizes.get(window.name, window.size), "io"])
    return text.getvalue()
