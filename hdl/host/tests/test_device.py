"""Tests which parameters a device refuses; cocotb_tests tests the device at a board's pins."""

from ddp_rnic.hdl.host.device import Device
from ddp_rnic.hdl.lib.tests.refused import refused
from ddp_rnic.hdl.spec import board
from ddp_rnic.hdl.spec.config import RnicConfig

RATES = {"clock": 62_500_000, "baud": 1_000_000}


def test_an_rnic_with_both_is_refused():
    refused("Device configuration must be an RnicConfig with SCTP or MPA, not",
            Device, RnicConfig(sctp=True), memory_octets=4096, **RATES)


def test_mpa_without_tcp_is_refused():
    refused("TcpReceiver connections must be a power of two from 2 to 16, not 0",
            Device, RnicConfig(), memory_octets=4096, **RATES)


def test_more_memory_than_the_window_has_is_refused():
    refused(f"Device memory must be at most {board.MEMORY.size} octets, not 33554432",
            Device, RnicConfig(mpa=False, sctp=True), memory_octets=1 << 25, **RATES)
