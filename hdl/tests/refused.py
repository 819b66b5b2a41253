"""Components that are refused as they are made."""

import gc
import warnings
from contextlib import contextmanager

import pytest
from amaranth.hdl import UnusedElaboratable


@contextmanager
def refused(match):
    """Within, a component is refused by a ValueError whose text matches."""
    with warnings.catch_warnings():
        # What was refused is never used; it goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(ValueError, match=match) as error:
            yield
        del error
        gc.collect()
