"""Tests of ``rnic prm``: the ways to the device that it owns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import serial
from ddp_rnic.cli import app
from typer.testing import CliRunner, Result


def prm(*arguments: object) -> Result:
    return CliRunner().invoke(app.app, ["prm", *map(str, arguments)])


@pytest.mark.parametrize(("asked", "rate"), [((), 1_000_000), (("--baud", 9600), 9600)])
def test_the_port_has_the_rate_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[object, ...], rate: int
) -> None:
    rates: list[int] = []

    def refuse(port: str, rate: int, **options: Any) -> None:
        rates.append(rate)
        raise serial.SerialException("no port is opened here")

    monkeypatch.setattr(serial, "serial_for_url", refuse)
    result = prm("uart:/dev/ttyNone", "--socket", tmp_path / "socket", *asked)
    assert result.exit_code == 1 and "/dev/ttyNone cannot be opened" in result.stderr
    assert rates == [rate]


@pytest.mark.parametrize("device", ["sim", "mapped:/dev/uio0"])
def test_a_rate_without_a_serial_port_is_bad_input(tmp_path: Path, device: str) -> None:
    result = prm(device, "--socket", tmp_path / "socket", "--baud", 9600)
    assert result.exit_code == 2
    assert f"--baud is only for a device uart:PORT, not for {device!r}" in result.stderr
