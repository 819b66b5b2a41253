"""Checks that the board's address map is consistent."""

import pytest
from ddp_rnic.hdl.spec import board, regs


def test_windows_do_not_overlap_and_lie_at_multiples_of_their_size() -> None:
    ends = 0
    for window in sorted(board.windows_of(sends=True), key=lambda window: window.address):
        assert window.address % window.size == 0, window.name
        assert window.address >= ends, window.name
        ends = window.address + window.size
    assert ends <= 1 << 32


def test_registers_are_words_of_their_window_each_at_its_own_address() -> None:
    addresses = [register.address for register in board.registers_of(tcp=True, sends=True)]
    assert len(set(addresses)) == len(addresses)
    assert all(at % 4 == 0 and at < board.BOARD.size for at in addresses)
    assert board.RNIC.size == 1 << regs.ADDRESS_BITS


@pytest.mark.parametrize("register", board.BY_NAME.values(), ids=lambda register: register.name)
def test_fields_of_a_register_do_not_overlap(register: regs.Register) -> None:
    end = 0
    for field in sorted(register.fields, key=lambda field: field.low):
        assert field.low >= end, field.name
        end = field.low + field.bits
    assert end <= 32


def test_the_windows_of_frames_hold_the_longest() -> None:
    assert board.LONGEST <= min(board.RECEIVED.size, board.TRANSMIT.size, board.SENT.size)


def test_unpack_undoes_pack() -> None:
    fields = {"link": 1, "speed": 2, "duplex": 1, "received": 0, "transmitting": 1, "mdio": 0,
              "interrupt": 1, "sent": 1}
    assert board.unpack("STATUS", board.pack("STATUS", **fields)) == fields
    assert board.address("ID") == 0x1000
