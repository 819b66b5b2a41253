"""Lists the registers that a board's host link reaches, for other tools."""

import csv
import io
import json
from dataclasses import asdict

from ..hdl.spec import board as spec
from ..hdl.spec import regs

__all__ = ["as_csv", "as_json"]


def _registers(board):
    """Yields window, register and address of each register that the board has."""
    rnic = regs.registers_of(board.config)
    own = spec.registers_of(tcp=board.connections > 0, sends=board.config.transmit)
    for window, registers in ((spec.RNIC, rnic), (spec.BOARD, own)):
        for register in registers:
            yield window, register, window.address + register.address


def _windows(board):
    return spec.windows_of(sends=board.config.transmit)


def as_json(board):
    """Returns windows, registers and fields with descriptions, and this board's parameters."""
    return json.dumps({
        "board": board.name,
        "baud": board.baud,
        "rnic": asdict(board.config),
        "windows": [asdict(window) for window in _windows(board)],
        "registers": [
            {"window": window.name, **asdict(register), "address": address}
            for window, register, address in _registers(board)
        ],
    }, indent=1) + "\n"


def as_csv(board):
    """Returns LiteX's ``csr.csv``, which clients of litex_server read."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for window in (spec.RNIC, spec.BOARD):
        writer.writerow(["csr_base", window.name.lower(), f"{window.address:#010x}", "", ""])
    identifier = spec.BOARD.address + spec.IDENTIFIER
    writer.writerow(["csr_base", "identifier_mem", f"{identifier:#010x}", "", ""])
    for window, register, address in _registers(board):
        name = f"{window.name}_{register.name}".lower()
        writer.writerow(["csr_register", name, f"{address:#010x}", 1, register.access])
    writer.writerow(["constant", "config_clock_frequency", board.clock, "", ""])
    writer.writerow(["constant", "config_csr_data_width", 32, "", ""])
    writer.writerow(["constant", "config_bus_address_width", 32, "", ""])
    sizes = {spec.MEMORY.name: board.memory}
    for window in _windows(board)[2:]:
        writer.writerow([
            "memory_region", window.name.lower(), f"{window.address:#010x}",
            sizes.get(window.name, window.size), "io"])
    return text.getvalue()
