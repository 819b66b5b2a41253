"""Tests the stream rules of every block that offers a stream which can wait."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from ddp_rnic.hdl.bus.csr import Registers
from ddp_rnic.hdl.ddp.commit import Commit
from ddp_rnic.hdl.ddp.delivery import Delivery
from ddp_rnic.hdl.ddp.entry_writer import EntryWriter
from ddp_rnic.hdl.dma.exceptions import ExceptionQueue
from ddp_rnic.hdl.dma.placement import PlacementDma
from ddp_rnic.hdl.lib.stream import Backlog, Queue, Skid, Stage, Store
from ddp_rnic.hdl.lib.tests.long import long
from ddp_rnic.hdl.mpa.intake import Intake
from ddp_rnic.hdl.mpa.scan import MpaScan
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.streams import (
    Accesses,
    BacklogOrder,
    Committed,
    QueueOrder,
    Scanned,
    SkidOrder,
    StageOrder,
    Steady,
    StoreOrder,
    TakenIn,
    valid_from_ready,
)
from ddp_rnic.hdl.proofs.tests.run import bounded, covers, induction, netlist
from ddp_rnic.hdl.rnic import Rnic
from ddp_rnic.hdl.spec.config import RnicConfig

CONFIG = RnicConfig(
    width=64, buffer_octets=4096, outstanding=8, stags=16, streams=2, queue_depth=4, pages=16,
    backlog=64, exception_octets=4096,
)


#: A bug: a Stage that takes the next item although the present one was not taken.
CARELESS = ("self.i.ready.eq(~self.o.valid | self.o.ready)", "self.i.ready.eq(1)")
#: The same bug in a Skid.
HASTY = ("advance.eq(~self.o.valid | self.o.ready)", "advance.eq(1)")
LONG = pytest.mark.long

#: Each block, and the same block with a bug.
BLOCKS = {
    "placement": (
        lambda: PlacementDma(CONFIG),
        lambda: planted(
            "dma.placement", OutputQueue=planted(
                "dma.output_queue", "(self.w.valid & ~self.w.ready)", "C(0)"
            ).OutputQueue,
        ).PlacementDma(CONFIG),
    ),
    "delivery": (
        lambda: Delivery(CONFIG),
        None,
    ),
    "entry writer": (
        lambda: EntryWriter(CONFIG),
        lambda: planted(
            "ddp.entry_writer", "beat.ready.eq(w.ready)", "beat.ready.eq(1)"
        ).EntryWriter(CONFIG),
    ),
    "dma.exceptions": (
        lambda: ExceptionQueue(CONFIG),
        None,
    ),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_offered_stays(block):
    proof = induction(Steady(BLOCKS[block][0]()))
    assert proof.status == "PASS", proof.log


# The larger blocks take longer.
@pytest.mark.parametrize("block", [
    pytest.param(name, marks=[LONG] * (name == "placement"))
    for name, (_, bug) in BLOCKS.items() if bug
])  # fmt: skip
def test_an_offer_that_is_withdrawn_is_caught(block):
    proof = bounded(Steady(BLOCKS[block][1](), lemmas=False), depth=24)
    assert proof.status == "FAIL", proof.log


@LONG
@pytest.mark.parametrize(
    "harness",
    [
        lambda: TakenIn(Intake(CONFIG), lemmas=False),
        lambda: Steady(EntryWriter(CONFIG), lemmas=False),
    ],
    ids=["intake", "entry writer"],
)
def test_offers_have_to_wait_at_times(harness):
    proof = covers(harness(), depth=24)
    assert proof.status == "PASS", proof.log


def test_the_intake_has_room_for_what_it_takes():
    proof = induction(TakenIn(Intake(CONFIG)), depth=TakenIn.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize(
    "bug",
    [
        lambda: planted("mpa.intake", Store=planted(
            "lib.stream", "pop.eq(pointers.some & self.o.ready)", "pop.eq(pointers.some)").Store),
        *long(lambda: planted(
            "mpa.intake", "self.i.ready.eq(queue.half)", "self.i.ready.eq(~queue.level[4])")),
    ],
    ids=["withdraws", "takes too much"],
)
def test_an_intake_that_errs_is_caught(bug):
    proof = bounded(TakenIn(bug().Intake(CONFIG), lemmas=False), depth=24)
    assert proof.status == "FAIL", proof.log


def test_the_scan_holds_a_beat_until_it_goes():
    proof = induction(Scanned(MpaScan(CONFIG)))
    assert proof.status == "PASS", proof.log


def test_a_scan_that_lets_a_beat_go_too_soon_is_caught():
    bug = planted("mpa.scan", "shifts.eq(can_shift & goes)", "shifts.eq(can_shift)")
    proof = bounded(Scanned(bug.MpaScan(CONFIG), lemmas=False), depth=24)
    assert proof.status == "FAIL", proof.log


def test_commit_has_room_for_what_it_takes_and_holds_what_it_offers():
    proof = induction(Committed(Commit(CONFIG)))
    assert proof.status == "PASS", proof.log


@LONG
def test_a_commit_that_withdraws_a_move_is_caught():
    bug = planted(
        "ddp.commit",
        "wiring.connect(m, stage.o, wiring.flipped(self.moves))",
        "m.d.comb += [self.moves.valid.eq(stage.o.valid), stage.o.ready.eq(1)]",
    )
    proof = bounded(Committed(bug.Commit(CONFIG), lemmas=False), depth=32)
    assert proof.status == "FAIL", proof.log


@LONG
def test_a_commit_without_room_is_caught():
    bug = planted("ddp.commit", "Credits(self.MOVES, lag=4)", "Credits(self.MOVES + 8, lag=4)")
    bug.Commit.MOVES = 4
    proof = bounded(Committed(bug.Commit(CONFIG), lemmas=False), depth=36)
    assert proof.status == "FAIL", proof.log


def test_the_registers_answer_each_request_once():
    proof = induction(Accesses(Registers(RnicConfig())))
    assert proof.status == "PASS", proof.log


def test_registers_that_answer_again_are_caught():
    bug = planted("bus.csr", "with m.If(bus.r.ready):", "with m.If(0):")
    proof = bounded(Accesses(bug.Registers(RnicConfig()), lemmas=False), depth=12)
    assert proof.status == "FAIL", proof.log


@pytest.mark.parametrize(
    "harness, component, options",
    [(StoreOrder, Store, {"depth": 4}), (StoreOrder, Store, {"depth": 4, "direct": True}),
     (QueueOrder, Queue, {"depth": 4}), (SkidOrder, Skid, {}), (StageOrder, Stage, {})],
    ids=["Store", "direct", "Queue", "Skid", "Stage"],
)
def test_a_queue_keeps_its_items_in_order(harness, component, options):
    proof = induction(harness(component(4, **options)), depth=2)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize(
    "harness, name, options, old, new",
    [
        (StoreOrder, "Store", {"depth": 4}, "self.read.eq(self.read + 1)",
         "self.read.eq(self.read + 2)"),
        (StoreOrder, "Store", {"depth": 4, "direct": True}, "~pointers.some & self.o.ready",
         "~pointers.some"),
        (QueueOrder, "Queue", {"depth": 4}, "store.level < self.depth - 1",
         "store.level < self.depth + 1"),
        (SkidOrder, "Skid", {}, "Mux(full, spare, self.i.payload)", "self.i.payload"),
        (StageOrder, "Stage", {}, *CARELESS),
        *long((StoreOrder, "Store", {"depth": 4}, "Mux(popped, two, one)", "one")),
    ],
)
def test_a_queue_that_loses_an_item_is_caught(harness, name, options, old, new):
    bug = getattr(planted("lib.stream", old, new), name)
    proof = bounded(harness(bug(4, **options), lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log


@LONG
def test_items_go_through_a_queue():
    proof = covers(QueueOrder(Queue(4, depth=4), lemmas=False), depth=14)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize("relaxed, direct", [(False, False), (True, False), (True, True)])
def test_a_backlog_keeps_its_items_in_order(relaxed, direct):
    backlog = Backlog(4, depth=16, relaxed=relaxed, direct=direct)
    proof = induction(BacklogOrder(backlog), depth=6)
    assert proof.status == "PASS", proof.log


@pytest.mark.parametrize(
    "relaxed, direct, old, new",
    [
        (False, False, "skid.i.valid.eq(came)", "skid.i.valid.eq(staged)"),
        (True, False, "moves.eq(~latched | advance)", "moves.eq(1)"),
        (True, True, "~self.some & ~latched & advance", "~self.some & advance"),
        *long((False, False, "moves.eq(~(self.o.valid & ~self.o.ready & (came | ~skid.i.ready)))",
               "moves.eq(1)")),
    ],
    ids=["early", "relaxed", "direct", "late"],
)
def test_a_backlog_that_loses_an_item_is_caught(relaxed, direct, old, new):
    bug = planted("lib.stream", old, new)
    backlog = bug.Backlog(4, depth=16, relaxed=relaxed, direct=direct)
    proof = bounded(BacklogOrder(backlog, lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log


@pytest.mark.parametrize(
    "component",
    [
        pytest.param(lambda: Rnic(CONFIG), marks=LONG),
        lambda: Intake(CONFIG),
        *(block for block, _ in BLOCKS.values()),
        lambda: Commit(CONFIG),
        lambda: Registers(CONFIG),
        lambda: Backlog(4, depth=16),
        lambda: Skid(4),
    ],
    ids=["rnic", "intake", *BLOCKS, "commit", "registers", "backlog", "skid"],
)
def test_no_offer_waits_for_ready(component):
    pairs, offers = valid_from_ready(netlist(component()))
    assert offers
    assert not pairs


class Hesitant(wiring.Component):
    """Offers its item only to a receiver that is ready."""

    i: wiring.In(stream.Signature(4))
    o: wiring.Out(stream.Signature(4))

    def elaborate(self, platform):
        m = Module()
        m.submodules.stage = stage = Stage(4)
        wiring.connect(m, wiring.flipped(self.i), stage.i)
        m.d.comb += [
            self.o.valid.eq(stage.o.valid & self.o.ready),
            self.o.payload.eq(stage.o.payload),
            stage.o.ready.eq(self.o.ready),
        ]
        return m


def test_an_offer_that_waits_for_ready_is_caught():
    assert valid_from_ready(netlist(Hesitant())) == ({("o__valid", "o__ready")}, 1)
