"""A device that only sends has the messages leave that kernels sent, and answers clearly where it
lacks something. Kernels and the RFC are the judges.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from ddp_rnic.hdl.spec import regs
from ddp_rnic.hdl.spec.completion import SentStatus
from ddp_rnic.hdl.spec.config import RnicConfig
from ddp_rnic.hdl.spec.send import Kind, Message, Piece
from ddp_rnic.sim.engines.compiled import CompiledEngine
from ddp_rnic.sim.engines.engine import (
    Drain,
    Frame,
    Operation,
    Packet,
    Pause,
    Poll,
    Resume,
    WriteRegister,
)
from ddp_rnic.sim.model.ddp import DataSource
from ddp_rnic.sim.model.events import ProtocolError
from ddp_rnic.sim.model.memory import Memory
from ddp_rnic.sim.model.send import SendQueue
from ddp_rnic.sim.replay.send_plan import send_plans
from ddp_rnic.sim.replay.sending import send
from ddp_rnic.sim.replay.tests.test_send_plan import GOOD, OTHER, STALLS, captured, piece, write
from ddp_rnic.sim.replay.tests.test_sending import KERNELS, KERNELS_SCTP, WORKLOAD, traffic
from ddp_rnic.sim.replay.tests.test_sent import Reporting, payloads, sent

ENGINE = CompiledEngine()
#: Over MPA alone, and over both.
ALONE = RnicConfig(receive=False, transmit=True)
BOTH = RnicConfig(receive=False, transmit=True, sctp=True)
SUCCESS, FAILED, FLUSHED = SentStatus
#: The answer of a bus to an access of a register that is not there.
DECERR = 3
READ = Message(Kind.READ, pieces=(Piece(0x1205, 100, 0x5000),), stag=0x33, to=0x4444)


by_llp = pytest.mark.parametrize("config", [ALONE, pytest.param(BOTH, marks=pytest.mark.long)])


@pytest.mark.skipif(not KERNELS, reason="needs the captures of real stacks beside the project")
@by_llp
def test_what_kernels_sent_leaves_a_device_that_only_sends(config: RnicConfig) -> None:
    """RDMA Reads alone are left out."""
    segments, left_out = Counter[bool](), Counter[str]()
    sctp = [traffic(path) for path in KERNELS_SCTP] if config.sctp else []
    for number, each in enumerate([*sctp, *captured()]):
        for plan in send_plans(send(each), config):
            outcome = ENGINE.run(config, plan.operations, plan.memory.copy(), stalls=STALLS)
            assert plan.compare(outcome) == []
            segments[number < len(sctp)] += plan.segments
            left_out += plan.left_out
    assert segments[False] > 1000 and (segments[True] > 100 or not config.sctp)
    assert list(left_out) == ["an RTL that only sends takes no Read Response"]


def test_a_wrong_octet_of_a_device_that_only_sends_is_found() -> None:
    (plan,) = send_plans(send(traffic(WORKLOAD)), ALONE)
    assert plan.compare(ENGINE.run(ALONE, plan.operations, plan.memory.copy())) == []
    plan.memory[np.flatnonzero(plan.memory != 0xEE)[0]] ^= 1
    (found,) = plan.compare(ENGINE.run(ALONE, plan.operations, plan.memory.copy()))
    assert found.what == "the RTL's FPDU"


def test_a_read_fails_because_nobody_would_receive_its_response() -> None:
    """RFC 5040 section 5.2: "The RDMA Read operation MUST consist of a single RDMA Read Request
    Message and a single RDMA Read Response Message."
    """
    device = Reporting(receive=False)
    device.send(1, GOOD)
    device.send(1, READ, signaled=False)
    device.send(1, GOOD)
    device.send(2, write(piece(0x5001, 1999, OTHER)))
    outcome = device.play(STALLS)
    assert sent(outcome, 1) == [(SUCCESS, 1), (FAILED, 2), (FLUSHED, 3)]
    assert sent(outcome, 2) == [(SUCCESS, 1)]
    assert b"".join(payloads(outcome, 1)) == device.octets(1, 0x5003, 2500)
    assert outcome.counters["DELIVERED"] == 4
    # The golden model says the same.
    queue = SendQueue(DataSource(1000), Memory(), receives=False)
    queue.post(READ)
    with pytest.raises(ProtocolError, match="READ must be sent on a stream that receives"):
        queue.send()
    queue = SendQueue(DataSource(1000), Memory())
    queue.post(READ)
    assert queue.send() is not None


def test_completions_that_have_no_room_wait_and_none_is_lost() -> None:
    device = Reporting(size=1, receive=False)
    device.operations.append(Pause())
    for _ in range(20):
        for stream, stag in ((1, 0x1205), (2, OTHER)):
            device.send(stream, write(piece(0x5000, 700, stag)))
    device.operations += [Drain(), Resume()]
    outcome = device.play(STALLS)
    assert len(outcome.fpdus) == 40
    for stream in (1, 2):
        assert sent(outcome, stream)[-1] == (SUCCESS, 20)
        assert {status for status, _ in sent(outcome, stream)} == {SUCCESS}


@by_llp
def test_registers_of_a_device_that_receives_are_not_there(config: RnicConfig) -> None:
    there = regs.registers_of(config)
    absent = [each for each in regs.REGISTERS if each not in there]
    assert all(each.receive or each.responder or (each.sctp and not config.sctp) for each in absent)
    names = {
        "QUEUE_OPEN", "BUFFER_POST", "EVENT_POP", "STREAM_CQ", "PLACED_SEGMENTS", "ASSOC_COMMIT",
        "FRAMES", "SESSION_COMMAND", "READ_ORD", "RESPONSE_COMMIT",
    }  # fmt: skip
    assert names < {each.name for each in absent}
    every = (1 << 32) - 1
    operations: list[Operation] = []
    for each in absent:
        operations.append(WriteRegister(each.address, every, response=DECERR))
        operations.append(Poll(each.address, every, 0, response=DECERR))
    for name, value in (
        ("CAP_BUFFER", 0), ("CAP_QUEUE", 0), ("CAP_BUFFERS", 0), ("CAP_WINDOW", 0),
        ("CAP_OWNER", 0), ("CAP_ASSOCIATIONS", config.associations * config.sctp), ("CAP_MPA", 1),
        ("CAP_CQS", config.completion_queues), ("CAP_STREAMS", config.streams),
        ("CAP_SENDS", regs.pack("CAP_SENDS", messages=1, chunks=config.sctp)), ("STATUS", 2),
    ):  # fmt: skip
        if regs.BY_NAME[name] in there:
            operations.append(Poll(regs.address(name), every, value))
    # Neither command has to wait for a block that is not there.
    for name in ("STREAM_COMMIT", "REVOKE_STREAM", "REVOKE_STAG"):
        operations.append(WriteRegister(regs.address(name), 1))
        operations.append(Poll(regs.address("STATUS"), every, regs.pack("STATUS", idle=1)))
    memory = Reporting(receive=False).memory
    assert ENGINE.run(config, operations, memory).completions == []


@pytest.mark.parametrize(
    "operation, kind", [(Packet(0, 0, b"x" * 24), "packet"), (Frame(b"x" * 64), "frame")]
)
def test_nothing_can_be_given_to_it(operation: Packet | Frame, kind: str) -> None:
    with pytest.raises(ValueError, match=f"a {kind} needs a configuration with .* and receive"):
        ENGINE.run(ALONE, [operation], Reporting(receive=False).memory)
