"""Two devices that send and receive work with each other; planted bugs of each kind are found."""

from __future__ import annotations

import random
import re
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ddp_rnic.cli import app, outcome
from ddp_rnic.hdl.lib.tests.long import first, long
from ddp_rnic.hdl.spec import commands
from ddp_rnic.hdl.spec.send import Record
from ddp_rnic.sim.devices.peer import bodies, both, end, sessions
from ddp_rnic.sim.devices.peer.entries import RingEntries, broken
from ddp_rnic.sim.devices.peer.lockstep import Kept, ReadSink
from ddp_rnic.sim.devices.peer.network import Rates
from ddp_rnic.sim.devices.peer.rest import Rest
from ddp_rnic.sim.engines.engine import Stalls
from ddp_rnic.sim.model.events import Delivered
from ddp_rnic.sw_driver import PD, Access, Device
from ddp_rnic.sw_driver.rdmap import CQ, QP, Opcode
from ddp_rnic.sw_driver.verbs.sending import Part, SendSettings
from typer.testing import CliRunner


@pytest.mark.parametrize("width, messages", [(64, 1000), *long((64, 200_000), (512, 20_000))])
def test_two_devices_agree_with_each_other_and_with_the_model(width: int, messages: int) -> None:
    done: list[tuple[int, int]] = []
    tally = both.play(width, 3, messages, Rates(), progress=lambda *now: done.append(now))
    assert tally.failure is None
    assert tally.messages >= messages and done[-1] == (messages, messages)
    assert tally.messages == tally.kinds.total() and len(tally.kinds) == 3
    assert tally.errors.total() >= 1 and tally.connections > tally.errors.total()
    assert tally.octets > 100 * messages and tally.cycles * width // 8 > tally.octets
    network, packets = tally.network, tally.network["packets"]
    assert packets > 2 * messages
    for count, rate in zip(("lost", "doubled", "overtaken"), Rates(), strict=True):
        assert 0.5 * rate < network[count] / packets < 2 * rate
    assert network["repeats"] > network["copies"] > 0


def test_nothing_leaves_again_where_nothing_is_lost() -> None:
    tally = both.play(64, 4, 60, Rates(0, 0, 0))
    assert tally.failure is None
    assert {name for name, count in tally.network.items() if count} == {"packets"}


def test_a_device_is_not_idle_while_it_reads_entries_that_it_drops() -> None:
    """The turn of a message without a kind ends before all entries have come that it reads."""
    settings = SendSettings(1000, crc=True, markers=False, keeps=True)
    slow = Stalls(response=0.95, stretch=50)
    with (
        both._Repeatable(both.config_of(64, False), stalls=slow, together=True) as sim,
        Device(sim).open() as context,
        PD(context) as pd,
        CQ(context) as cq,
        QP(pd, cq, settings) as qp,
        pd.register(bytearray(4), Access.LOCAL_READ) as region,
    ):
        assert (half := qp.stream.sending) is not None
        entries, done = RingEntries(half), 0
        for change in (None, None, None, broken(random.Random(0))):
            entries.change = change
            if change is not None:
                while done < 3:
                    sim.run(20)
                    done += len(cq.poll())
                    qp.data_to_send()
            qp.post_send(Opcode.SEND, [Part(region, 0, 4)] * 245)
        read = 0
        for _ in range(5000):
            sim.run(1)
            idle, reads = sim._idle(), sim._departed()[-1]
            assert not (idle and reads)
            read += reads
        assert idle and read > 500


def test_a_seed_gives_the_same_run_cycle_for_cycle() -> None:
    one, other = (both.play(64, 5, 30, Rates(loss=0.2)) for _ in range(2))
    assert one.failure is None and one.network["repeats"]
    assert replace(one, seconds=0) == replace(other, seconds=0)


def test_completion_queues_fill_up_and_doorbells_ring_for_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    went_on: list[Rest] = []
    restore = Rest.restore

    def restored(rest: Rest) -> None:
        restore(rest)
        went_on.append(rest)

    monkeypatch.setattr(Rest, "restore", restored)
    monkeypatch.setattr(both, "_RESTS", 0.7)
    errors = Counter[str]()
    wanted = {"message to a full completion queue", "doorbell beyond the ring"}
    for seed in range(30):
        tally = both.play(64, seed, 40, Rates())
        assert tally.failure is None
        errors += tally.errors
        if went_on and wanted <= {*errors}:  # some connections were played on
            return
    pytest.fail(f"of {wanted}, {errors} were played")


def test_an_end_that_takes_no_completions_posts_no_more_than_its_ring_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(both, "_RESTS", 1.0)
    monkeypatch.setattr(both, "_MEANWHILE", 48)
    monkeypatch.setattr(bodies, "_CUTS", (249,))  # the most entries of a message
    tally = both.play(64, 1, 20, Rates())
    assert tally.failure is None


@pytest.mark.long
def test_a_silent_message_leaves_room_for_the_one_that_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(both, "_SILENT", 1.0)
    monkeypatch.setattr(both, "_LONGEST", 0.5)
    monkeypatch.setattr(both, "_FULL", 1.0)
    monkeypatch.setattr(both, "_CONNECTIONS", (1,))
    monkeypatch.setattr(both, "_KEEPING", 1.0)  # a release would end silent messages
    tally = both.play(64, 1, 40, Rates(0, 0, 0))
    assert tally.failure is None


def test_an_unexpected_error_names_its_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no length")

    monkeypatch.setattr(both._End, "_length", fails)
    with pytest.raises(ExceptionGroup) as caught:
        both.play(64, 1, 10, Rates(), only=3)
    assert "in chunk 3, after 0 messages" in "".join(traceback.format_exception(caught.value))


def other_octets(bugs: pytest.MonkeyPatch) -> None:
    body = both._End._body

    def wrong(end: Any, length: int) -> Any:
        drawn = body(end, length)
        octets = drawn.octets
        return drawn._replace(octets=octets[:-1] + bytes((octets[-1] ^ 1,)) if octets else octets)

    bugs.setattr(both._End, "_body", wrong)


def other_memory(bugs: pytest.MonkeyPatch) -> None:
    write = both._End._write

    def wrong(end: Any, peer: Any, number: int) -> None:
        write(end, peer, number)
        peer.written[-1] ^= 1

    bugs.setattr(both._End, "_write", wrong)


def other_source(bugs: pytest.MonkeyPatch) -> None:
    read = both._End._read

    def wrong(end: Any, peer: Any, number: int) -> None:
        read(end, peer, number)
        request = end._requests.pop()
        end._requests.append(request._replace(octets=request.octets[::-1]))

    bugs.setattr(both._End, "_read", wrong)


def a_model_that_delivers_nothing(bugs: pytest.MonkeyPatch) -> None:
    receive = ReadSink.receive

    def wrong(sink: ReadSink, ulpdu: bytes) -> Any:
        return [each for each in receive(sink, ulpdu) if not isinstance(each, Delivered)]

    bugs.setattr(ReadSink, "receive", wrong)


def an_end_at_hand_over(bugs: pytest.MonkeyPatch) -> None:
    """The device ends messages that have left, and the driver does not know."""
    opens = commands.set_send_ring
    bugs.setattr(commands, "set_send_ring", lambda *given, repeats, **named: opens(*given, **named))


def more_credit(bugs: pytest.MonkeyPatch) -> None:
    limit = commands.set_limit
    bugs.setattr(commands, "set_limit", lambda stream, end: limit(stream, end + (1 << 20)))


def a_larger_completion_queue(bugs: pytest.MonkeyPatch) -> None:
    """The golden model takes the queue for one that holds one entry more."""
    begin = Rest.__init__

    def wrong(rest: Rest, cq: CQ, stream: int, size: int) -> None:
        begin(rest, cq, stream, size)
        rest._sim.rooms[stream] += 1

    bugs.setattr(Rest, "__init__", wrong)


def a_completion_that_is_lost(bugs: pytest.MonkeyPatch) -> None:
    """The driver leaves out the first completion of a queue that was full."""
    end = Rest.end

    def wrong(rest: Rest) -> None:
        end(rest)
        rest._ring.consumed += 1

    bugs.setattr(Rest, "end", wrong)


def a_device_that_is_always_idle(bugs: pytest.MonkeyPatch) -> None:
    bugs.setattr(both._Repeatable, "_idle", lambda sim: True)


def a_device_that_is_never_idle(bugs: pytest.MonkeyPatch) -> None:
    bugs.setattr(both._Repeatable, "_idle", lambda sim: False)


def another_record(bugs: pytest.MonkeyPatch) -> None:
    """The golden model expects a record of the next octet beside an FPDU that leaves again."""

    def wrong(kept: Kept) -> Record:
        return replace(kept.record, repeat=1, offset=kept.record.offset + 1)

    bugs.setattr(Kept, "again", property(wrong))


def an_invalidation_that_is_not_reported(bugs: pytest.MonkeyPatch) -> None:
    received = QP._received

    def wrong(qp: QP, message: Any, status: Any, solicited: bool = False, *_: Any) -> None:
        received(qp, message, status, solicited)

    bugs.setattr(QP, "_received", wrong)


def no_repeat(bugs: pytest.MonkeyPatch) -> None:
    bugs.setattr(commands, "repeat", lambda *given, **named: ())
    bugs.setattr(end, "_STILL", 400)


def a_repeat_of_other_octets(bugs: pytest.MonkeyPatch) -> None:
    repeat = commands.repeat

    def wrong(*given: int, offset: int, length: int, **named: Any) -> Any:
        return repeat(*given, offset=offset ^ (offset > 0), length=length, **named)

    bugs.setattr(commands, "repeat", wrong)


@pytest.mark.parametrize(
    "plant, says",
    first(
        [
            (other_memory, "Writes have left other octets"),
            (a_model_that_delivers_nothing, "gateware and golden model differ in completions"),
            (a_larger_completion_queue, "differ in errors .* Completion queue overrun"),
            (a_completion_that_is_lost, "differ in completions"),
            (a_device_that_is_always_idle, "the device was idle in cycle"),
            (a_device_that_is_never_idle, "the device is not idle 30000 cycles after"),
            (an_invalidation_that_is_not_reported, "arrived as another one"),
            (another_record, r"differ in an FPDU that it sends .* expected Record\("),
            (more_credit, "octets have left for which there was no credit"),
            (no_repeat, "nothing has moved for"),
            (other_octets, "arrived as another one"),
            (other_source, "octets got others"),
            (an_end_at_hand_over, "differ in an FPDU that it sends"),
            (a_repeat_of_other_octets, "differ in an FPDU that it sends"),
        ],
        5,
    ),
)
def test_a_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    tally = both.play(64, 3, 300, Rates())
    assert tally.failure is not None and re.search(says, tally.failure.message)


def test_the_command_says_what_was_played() -> None:
    arguments = "soak --both --segments 50 --width 64 --seed 5 --loss 0.1".split()
    result = CliRunner().invoke(app.app, arguments)
    assert result.exit_code == outcome.AGREES, result.output
    played = re.match(r"seed 5\n64 bits: agree on (\d+) messages", result.stdout)
    assert played is not None and 50 <= int(played[1]) < 150  # 64 of them fill a queue, at most
    assert re.search(
        r"network: \d+ packets, \d+ lost, \d+ doubled, \d+ overtaken; \d+ FPDUs? sent again from"
        r" host memory, \d+ from copies",
        result.stdout,
    )


def test_the_command_says_how_to_play_a_failure_again(monkeypatch: pytest.MonkeyPatch) -> None:
    other_octets(monkeypatch)
    arguments = "soak --both --segments 150 --width 64 --seed 5 --reorder 0".split()
    result = CliRunner().invoke(app.app, arguments)
    assert result.exit_code == outcome.DIFFERS
    assert (
        "again: rnic soak --both --seed 5 --width 64 --loss 0.05 --duplication 0.02 --reorder 0.0"
        " --chunk 0 --segments 150 (on new devices; with all chunks before it: --segments 150"
    ) in result.stdout
    assert "64 bits: differ on" in result.stdout


@pytest.mark.parametrize(
    "arguments, says",
    [
        ("--both --bus-errors", "--both takes no --waves, no --bus-errors and no --streams"),
        ("--loss 0.1", "--sctp, --loss, --duplication and --reorder need --both"),
        ("--sctp", "--sctp, --loss, --duplication and --reorder need --both"),
        ("--both --loss 0.5", "0.3"),
    ],
)
def test_the_command_refuses_what_two_devices_do_not_have(arguments: str, says: str) -> None:
    result = CliRunner().invoke(app.app, ["soak", *arguments.split()])
    assert result.exit_code == 2
    assert says in result.output


# -- over SCTP -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width, messages", [(64, 200), *long((64, 20_000), (512, 3000))])
def test_two_devices_agree_over_sctp(width: int, messages: int) -> None:
    tally = both.play(width, 7, messages, Rates(), sctp=True)
    assert tally.failure is None
    assert tally.messages >= messages and tally.connections > 2
    assert {*tally.kinds} == {"tagged message", "untagged message", "RDMA Read"}
    assert tally.network["repeats"] > 0 and tally.octets > 50 * messages


def other_chunks(bugs: pytest.MonkeyPatch) -> None:
    draw = sessions.Bodies.draw

    def wrong(bodies: Any, *given: Any) -> Any:
        drawn = draw(bodies, *given)
        return drawn._replace(octets=drawn.octets[::-1])

    bugs.setattr(sessions.Bodies, "draw", wrong)


def no_acknowledgment(bugs: pytest.MonkeyPatch) -> None:
    bugs.setattr(sessions.SctpEnd, "_take", lambda end, tsn: None)


def another_mulpdu(bugs: pytest.MonkeyPatch) -> None:
    sets = commands.set_mulpdu
    bugs.setattr(commands, "set_mulpdu", lambda stream, mulpdu: sets(stream, mulpdu - 4))


@pytest.mark.parametrize(
    "plant, says",
    first(
        [
            (other_chunks, "a device delivers"),
            (a_device_that_is_always_idle, "the device was idle in cycle"),
            (a_device_that_is_never_idle, "the device is not idle 30000 cycles after"),
            (another_record, r"Record\(.*\) is not Record\("),
            (no_acknowledgment, "is reported as a repetition"),
            (an_end_at_hand_over, "was sent again, which was|a device delivers"),
            (another_mulpdu, "has not the MULPDU"),
        ],
        2,
    ),
)
def test_a_bug_over_sctp_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    tally = both.play(64, 3, 200, Rates(0.1, 0.1, 0.1), sctp=True)
    assert tally.failure is not None and re.search(says, tally.failure.message)
