"""Tests the proofs that no completion comes before its last write response, or twice."""

import pytest
from ddp_rnic.hdl.ddp.delivery import Due
from ddp_rnic.hdl.dma.burst import Bursts
from ddp_rnic.hdl.proofs import bursts
from ddp_rnic.hdl.proofs.delivery import (
    CONFIG,
    Answers,
    Completions,
    Direct,
    Ripe,
    Straight,
)
from ddp_rnic.hdl.proofs.harness import planted
from ddp_rnic.hdl.proofs.tests.run import bounded, covers, induction

SOONER = ("leaves.eq(some & due & ~write.valid)", "leaves.eq(some & ~write.valid)")


def answers(component=Bursts, **options):
    return Answers(component(bursts.CONFIG, bursts.BURST_JOB), **options)


def test_a_placement_is_done_once_after_its_last_response():
    proof = induction(answers())
    assert proof.status == "PASS", proof.log
    proof = covers(answers(lemmas=False), depth=20)
    assert proof.status == "PASS", proof.log


def test_a_placement_done_before_its_response_is_caught():
    bug = planted("dma.burst", "answered.eq(answers.o.valid & waiting", "answered.eq(waiting")
    proof = bounded(answers(bug.Bursts, lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log


def test_a_placement_done_twice_is_caught():
    bug = planted("dma.burst", "answered & head.final", "head.final")
    proof = bounded(answers(bug.Bursts, lemmas=False), depth=14)
    assert proof.status == "FAIL", proof.log


def test_a_message_is_due_when_its_placements_are_retired():
    proof = induction(Ripe(Due(CONFIG)), depth=2)
    assert proof.status == "PASS", proof.log
    proof = covers(Ripe(Due(CONFIG), lemmas=False), depth=20)
    assert proof.status == "PASS", proof.log


def test_a_message_that_is_due_too_soon_is_caught():
    bug = planted("ddp.delivery", *SOONER)
    proof = bounded(Ripe(bug.Due(CONFIG), lemmas=False), depth=16)
    assert proof.status == "FAIL", proof.log


@pytest.mark.long
def test_completions_are_written_in_order_once_and_not_too_soon():
    right = planted("ddp.delivery", Precedence=Straight, CompletionQueues=Direct)
    proof = bounded(Completions(right.Delivery(CONFIG)), depth=Completions.DEPTH)
    assert proof.status == "PASS", proof.log


@pytest.mark.long
def test_completions_are_reached():
    right = planted("ddp.delivery", Precedence=Straight, CompletionQueues=Direct)
    proof = covers(Completions(right.Delivery(CONFIG)), depth=Completions.DEPTH)
    assert proof.status == "PASS", proof.log


def test_a_completion_too_soon_is_caught():
    bug = planted("ddp.delivery", *SOONER, Precedence=Straight, CompletionQueues=Direct)
    proof = bounded(Completions(bug.Delivery(CONFIG)), depth=Completions.DEPTH)
    assert proof.status == "FAIL", proof.log


@pytest.mark.long
def test_a_completion_twice_is_caught():
    bug = planted(
        "ddp.delivery",
        "messages.o.ready.eq(failures.o.valid & skid.i.ready)",
        "messages.o.ready.eq(failures.o.valid & skid.i.ready & ~self.host.bind.valid)",
        Precedence=Straight,
        CompletionQueues=Direct,
    )
    proof = bounded(Completions(bug.Delivery(CONFIG)), depth=Completions.DEPTH)
    assert proof.status == "FAIL", proof.log
