"""Tests the proof that every event waits for the host, once."""

from ddp_rnic.hdl.proofs.events import CONFIG, ShortEvent, Sticky, Whenever
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, bugs, covers, induction


def events(old="", new="", **options):
    """Returns the proof of the block, or of a copy with a bug, with a slot for each stream."""
    copy = planted("ddp.events", old, new, Backlog=Whenever, ErrorEvent=ShortEvent)
    copy.Events.LEAST = CONFIG.streams
    return Sticky(copy.Events(CONFIG), **options)


def test_every_event_waits_for_the_host_once():
    proof = induction(events(), depth=Sticky.DEPTH)
    assert proof.status == "PASS", proof.log
    proof = covers(events(lemmas=False), depth=12)
    assert proof.status == "PASS", proof.log


@bugs(
    "old, new",
    ("max(self.LEAST, config.streams)", "config.streams // 2"),
    ("used.eq(age < most)", "used.eq(age <= most)"),
    ("used & (owners.data[0] == self.stream)", "used"),
    ("popped.eq(self.o.valid & self.o.ready)", "popped.eq(self.o.valid)"),
    ("most.eq(count)", "most.eq(ring.level + popped)"),
    ids=["overflows", "one too many", "any stream", "not read", "late"],
)
def test_events_that_err_are_caught(old, new):
    proof = bounded(events(old, new, lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log
