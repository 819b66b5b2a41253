"""Tests the commands: the registers that they write, and the entry of the STag table."""

import pytest
from ddp_rnic.hdl.spec import commands, regs, stag
from ddp_rnic.hdl.spec.commands import Wait, Write
from ddp_rnic.hdl.spec.net import AssociationKey, Move
from ddp_rnic.hdl.spec.sctp import Function
from ddp_rnic.hdl.spec.stag import Access
from hypothesis import given
from hypothesis import strategies as st

REGION = {"to": 0x1_0000_0002, "length": 0x3_0000_0004, "address": 0x5_0000_0006, "pages": 7}
KEY = AssociationKey(1, 2, 3, 4, 5, v6=False)
ALL = {
    "set_stag": commands.set_stag(0x123456_78, Access.REMOTE_WRITE, pd=9, **REGION),
    "clear_stag": commands.clear_stag(0x123456_78),
    "revoke_stag": commands.revoke_stag(0x123456_78),
    "set_page": commands.set_page(3, 0x1_0000_1000),
    "set_stream": commands.set_stream(3, pd=9, crc=True),
    "revoke_stream": commands.revoke_stream(3),
    "open_queue": commands.open_queue(3, 1, 0xFFFFFFFF),
    "close_queue": commands.close_queue(3, 1),
    "post": commands.post(3, 1, 2, address=0x1_0000_0000, length=64, cookie=5, slot=6),
    "moderate": commands.moderate(4, 100),
    "mask_interrupts": commands.mask_interrupts(event=True),
    "set_cq": commands.set_cq(0x1_0000_0000, 6, queue=3),
    "disable_cq": commands.disable_cq(3),
    "take": commands.take(0x1_2345, queue=3, arm=True),
    "set_send_page": commands.set_send_page(3, 4),
    "close_send_ring": commands.close_send_ring(3),
    "close_path": commands.close_path(3),
    "set_path_limit": commands.set_path_limit(3, -1, 1 << 32),
    "set_association": commands.set_association(Move(1, 2, KEY), first=3, count=4, number=5),
    "clear_association": commands.clear_association(1, 2),
    "tell_session": commands.tell_session(3, Function.INITIATE, 4, taken=True),
    "forget_sessions": commands.forget_sessions(2),
    "clear_tables": commands.clear_tables(
        stags=2, streams=2, associations=2, sends=True, responds=True
    ),
}


def test_an_stag_is_written_as_the_register_map_says() -> None:
    domain = commands.set_stag(0x123456_78, Access.REMOTE_READ, pd=9, **REGION)
    assert {step.register: step.value for step in domain} == {
        "STAG_INDEX": 0x123456, "STAG_FLAGS": 1 << 10 | 1 << 8 | 0x78, "STAG_OWNER": 9,
        "STAG_TO_LO": 2, "STAG_TO_HI": 1, "STAG_LEN_LO": 4, "STAG_LEN_HI": 3, "STAG_ADDR_LO": 6,
        "STAG_ADDR_HI": 5, "STAG_PAGES": 7, "STAG_COMMIT": 1,
    }  # fmt: skip
    bound = commands.set_stag(1, Access.REMOTE_WRITE, stream=4, **REGION)
    assert Write("STAG_FLAGS", 1 << 11 | 1 << 9 | 1 << 8 | 1) in bound
    assert Write("STAG_OWNER", 4) in bound


@pytest.mark.parametrize("owner", [{}, {"pd": 1, "stream": 1}])
def test_an_stag_has_one_owner(owner: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must belong to a protection domain or a stream"):
        commands.set_stag(1, Access.REMOTE_WRITE, **REGION, **owner)


@pytest.mark.parametrize("name", ALL)
def test_a_command_ends_with_its_effect_or_its_wait(name: str) -> None:
    steps = ALL[name]
    for step in steps:
        register = regs.BY_NAME[step.register]
        assert 0 <= step.value < 1 << 32
        if isinstance(step, Write):
            assert register.access in ("rw", "wo")
            takes_value = register.access == "rw" or step.register == "BUFFER_POST"
            assert step.value == 1 or takes_value
        else:
            assert register.access == "ro" and step.value & ~step.mask == 0
    if name != "mask_interrupts":
        last = steps[-1]
        assert (
            isinstance(last, Wait)
            or last.register in regs.DOORBELLS
            or regs.BY_NAME[last.register].access == "wo"
        )


def test_a_doorbell_is_one_write() -> None:
    assert ALL["take"] == (Write("CQ_DOORBELL", 1 << 31 | 3 << 16 | 0x2345),)


def test_a_doorbell_of_a_page_is_where_the_register_is_in_page_0() -> None:
    (step,) = commands.ring_send(5, 0x1_0007, page=16)
    assert (step.value, step.address) == (5 << 16 | 7, 0x10000 + regs.address("SEND_DOORBELL"))
    assert commands.take(1, page=2)[0].address == 0x2000 + regs.address("CQ_DOORBELL")
    assert commands.ring_send(5, 7)[0].address == regs.address("SEND_DOORBELL")
    with pytest.raises(ValueError, match="a doorbell page must be from 0 to 16, not 17"):
        regs.doorbell("SEND_DOORBELL", 17)
    with pytest.raises(ValueError, match="a doorbell page has SEND_DOORBELL and CQ_DOORBELL, not"):
        regs.doorbell("STAG_COMMIT", 1)


@given(st.data())
def test_the_registers_hold_the_entry(data: st.DataObject) -> None:
    access = data.draw(st.sampled_from([*stag.RIGHTS.values(), Access.NONE]))
    others = {
        field.name: data.draw(st.integers(0, (1 << field.bits) - 1))
        for field in stag.FIELDS
        if field.name not in stag.RIGHTS
    }
    found, fields = stag.decode(stag.encode(access, **others))
    assert found == access
    assert {name: fields[name] for name in others} == others


def test_the_fields_of_the_flags_do_not_overlap() -> None:
    end = 0
    for field in stag.FLAGS:
        assert field.low == end
        end += field.bits
