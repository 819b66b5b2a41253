"""Tests the virtual board: a board's top, unchanged, at its pins."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ddp_rnic.boards.registers import as_csv
from ddp_rnic.boards.virtual import to_verilog
from ddp_rnic.cocotb_tests import driver_tests, litex_tests, sending_tests, tcp_board_tests
from ddp_rnic.cocotb_tests.board_tests import BOARD, COUNT
from ddp_rnic.sim.devices import board_gates
from ddp_rnic.sim.engines.cocotb_engine import run_tests_on

pytestmark = pytest.mark.long


def test_a_board_at_its_pins_agrees_with_the_model(tmp_path: Path) -> None:
    run_tests_on(to_verilog(BOARD), "ddp_rnic.cocotb_tests.board_tests", tmp_path, COUNT)


def test_a_board_with_tcp_at_its_pins_agrees_with_the_models(tmp_path: Path) -> None:
    text = to_verilog(tcp_board_tests.BOARD)
    run_tests_on(text, tcp_board_tests.__name__, tmp_path, tcp_board_tests.COUNT)


def test_a_board_as_gates_agrees_with_the_model(tmp_path: Path) -> None:
    """The netlist is the one that is placed for the board."""
    text = board_gates.verilog(BOARD)
    run_tests_on(text, "ddp_rnic.cocotb_tests.board_tests", tmp_path, COUNT, netlist=True)


def test_a_board_with_tcp_as_gates_agrees_with_the_models(tmp_path: Path) -> None:
    text = board_gates.verilog(tcp_board_tests.BOARD)
    name = tcp_board_tests.__name__
    run_tests_on(text, name, tmp_path, tcp_board_tests.COUNT, netlist=True)


@pytest.mark.parametrize("board", [driver_tests.BOARD, tcp_board_tests.BOARD], ids=["sctp", "tcp"])
def test_litex_reaches_a_board_at_its_uart(tmp_path: Path, board: Any) -> None:
    """LiteX's server and client run with the csr.csv of the board."""
    board = replace(board, baud=driver_tests.BOARD.baud)
    csr = tmp_path / "csr.csv"
    csr.write_text(as_csv(board), encoding="utf-8")
    environment = {
        litex_tests.PYTHON: sys.executable, litex_tests.CSR: str(csr),
        litex_tests.NAME: f"ddp-rnic on {board.title}",
        litex_tests.CLOCK: str(board.clock), litex_tests.RATE: str(board.baud),
    }  # fmt: skip
    run_tests_on(
        to_verilog(board), litex_tests.__name__, tmp_path, litex_tests.COUNT,
        environment=environment,
    )  # fmt: skip


def test_the_driver_reaches_a_board_at_its_uart(tmp_path: Path) -> None:
    text = to_verilog(driver_tests.BOARD)
    run_tests_on(text, driver_tests.__name__, tmp_path, driver_tests.COUNT)


def test_a_board_sends_at_its_pins(tmp_path: Path) -> None:
    text = to_verilog(sending_tests.BOARD)
    run_tests_on(text, sending_tests.__name__, tmp_path, sending_tests.COUNT)
