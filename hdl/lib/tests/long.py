"""Marks parameters of tests that need ``pytest --long``, because they repeat what others show."""

import pytest
from ddp_rnic.hdl.spec.config import WIDTHS


def long(*values):
    """Returns parameters that need ``--long``: each of them a value, or a tuple of values."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for value in values
    ]


def few(rows, *usual):
    """Returns parameters: those of ``rows`` that are not ``usual`` need ``--long``."""
    return [*usual, *long(*(row for row in rows if row not in usual))]


#: For tests that only repeat at 512 bits what another test of the same block shows there.
NARROW = [WIDTHS[0], *long(*WIDTHS[1:])]
#: For tests that only repeat at 64 bits what another test of the same block shows there.
WIDE = [*long(*WIDTHS[:-1]), WIDTHS[-1]]
