"""Uses a board as a LiteX user would: ``litex_server`` at its serial port, then LiteX's client.

The arguments are the port, the board's ``csr.csv``, and the name that the board must have.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from ddp_rnic.hdl.spec import board, regs
from litex.tools.litex_client import RemoteClient

_TOOLS = (sys.executable, "-m")


def check(csr: str, port: int, name: str) -> None:
    """Raises an exception unless the board answers as its csr.csv says."""
    bus = RemoteClient(csr_csv=csr, port=port)
    bus.open()
    try:
        values = {
            label: register.read()
            for label, register in bus.regs.d.items()
            if register.mode in ("ro", "rw")
        }
        assert values["board_id"] == board.ID and values["rnic_id"] == regs.ID, values
        for label in ("board_scratch", "rnic_scratch"):
            register = getattr(bus.regs, label)
            register.write(0x600D1DEA)
            assert register.read() == 0x600D1DEA, label
        words = list(range(100, 120))
        bus.write(bus.mems.memory.base, words)
        assert bus.read(bus.mems.memory.base, len(words)) == words
        # The server reads several words at one address with one command.
        assert bus.read(bus.mems.memory.base + 4, 3, burst="fixed") == 3 * [101]
        # Every access found something.
        assert bus.regs.board_host_errors.read() == 0
        bus.regs.board_received_pop.write(1)
        assert bus.regs.board_host_errors.read() == 0
    finally:
        bus.close()
    asked = [*_TOOLS, "litex.tools.litex_client", "--csr-csv", csr, "--port", str(port), "--ident"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.rstrip("\0\n") == name, told.stdout


def main(tty: str, csr: str, name: str) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [*_TOOLS, "litex.tools.litex_server", "--uart", "--uart-port", tty]
    with subprocess.Popen([*command, "--bind-port", str(port)]) as server:
        try:
            for _ in range(100):
                with socket.socket() as trial:
                    if not trial.connect_ex(("localhost", port)):
                        break
                time.sleep(0.1)
            check(csr, port, name)
        finally:
            server.terminate()


if __name__ == "__main__":
    main(*sys.argv[1:])
