"""Marks parameters of tests that need ``pytest --long``, because they repeat what others show."""

import pytest
from ddp_rnic.hdl.spec.config import WIDTHS


def long(*values):
    """Returns parameters that need ``--long``: each of them a value, or a tuple of values."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for value in values
    ]


def first(values, count=1):
    """Returns parameters of which all but the first ``count`` need ``--long``."""
    values = [*values]
    return [*values[:count], *long(*values[count:])]


#: For tests that only repeat at 512 bits what another test of the same block shows there.
NARROW = [WIDTHS[0], *long(*WIDTHS[1:])]
