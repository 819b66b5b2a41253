"""Checks which parameters an RNIC accepts, and the messages for those that it refuses."""

from dataclasses import fields
from typing import Any

import pytest
from ddp_rnic.hdl.spec.config import RnicConfig


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"mpa": False}, ValueError, "mpa or sctp must be True"),
        ({"mpa": 1}, TypeError, "mpa must be True or False, not 1"),
        ({"sctp": "no"}, TypeError, "sctp must be True or False, not 'no'"),
        ({"transmit": 1}, TypeError, "transmit must be True or False, not 1"),
        ({"relaxed": 1}, TypeError, "relaxed must be True or False, not 1"),
        ({"full_counters": 1}, TypeError, "full_counters must be True or False, not 1"),
        ({"address": "64"}, TypeError, "address must be an integer, not '64'"),
        ({"address": 11}, ValueError, "address must be from 12 to 64, not 11"),
        (
            {"sctp": True, "window": 2048},
            ValueError,
            "window must be at most 1024 with 64 streams, not 2048",
        ),
        ({"address": 65}, ValueError, "address must be from 12 to 64, not 65"),
        (
            {"streams": 4096, "queue_depth": 128},
            ValueError,
            "queue_depth must be at most 64 with 4096 streams, not 128",
        ),
        (
            {"sctp": True, "streams": 2, "address": 12},
            ValueError,
            "address must be at least 13 for the queue of SCTP's owner with 2 streams, not 12",
        ),
    ],
)
def test_parameters_that_cannot_be_are_refused(
    parameters: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        RnicConfig(**parameters)


def test_limits_that_only_receiving_has_do_not_count_without_it() -> None:
    RnicConfig(receive=False, transmit=True, streams=4096, queue_depth=4096)
    RnicConfig(receive=False, transmit=True, sctp=True, address=12)


@pytest.mark.parametrize("field", fields(RnicConfig), ids=lambda field: field.name)
def test_a_number_of_another_type_is_refused_even_if_it_is_equal_to_a_good_one(field: Any) -> None:
    default = field.default
    rule = "True or False" if isinstance(default, bool) else "an integer"
    wrongs: list[Any] = [float(default), complex(default), str(default), None]
    for wrong in wrongs:
        with pytest.raises(TypeError, match=f"^{field.name} must be {rule}, not "):
            RnicConfig(**{field.name: wrong})


def test_both_are_there_where_both_are_asked_for() -> None:
    assert RnicConfig(sctp=True).both
    assert not RnicConfig().both and not RnicConfig(mpa=False, sctp=True).both
