"""Tests LiteX's own server and client at a board's UART pins, through a pseudo-terminal.

The client is :mod:`.litex_client`, in a process of its own; this module carries its octets.
"""

from __future__ import annotations

import os
import pty
import subprocess
import tty
from typing import Any

import cocotb
from cocotb.triggers import Timer
from ddp_rnic.sim.engines.board_bench import BoardBench
from ddp_rnic.sim.engines.engine import Ring

#: Number of tests in this module.
COUNT = 1
#: Variables of the environment: the Python that runs the client, the board's csr.csv, its name, its
#: clock and its rate.
PYTHON, CSR, NAME, CLOCK, RATE = (
    f"LITEX_TEST_{each}" for each in ("PYTHON", "CSR", "NAME", "CLOCK", "RATE")
)
#: Nanoseconds between two reads of the pseudo-terminal.
_LOOK = 2000


@cocotb.test()
async def litex_reads_and_writes_every_register(dut: Any) -> None:
    """The client finds all that it expects, and no access went to an unused address."""
    settings = os.environ
    bench = BoardBench(dut, int(settings[CLOCK]), int(settings[RATE]), Ring(0, 4))
    await bench.start()
    sink = bench.link._sink
    host, board = pty.openpty()
    tty.setraw(board)
    os.set_blocking(host, False)
    command = [settings[PYTHON], "-m", "ddp_rnic.cocotb_tests.litex_client", os.ttyname(board)]
    with subprocess.Popen(
        [*command, settings[CSR], settings[NAME]],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as client:  # fmt: skip
        while client.poll() is None:
            try:
                await bench.link.send(os.read(host, 4096))
            except BlockingIOError:
                await Timer(_LOOK, "ns")
            if not sink.empty():
                os.write(host, sink.read_nowait())
        assert client.stdout is not None
        said = client.stdout.read()
    assert client.returncode == 0, said
