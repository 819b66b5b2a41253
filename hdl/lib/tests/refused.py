"""Components that are refused as they are made."""

import gc
import warnings

import pytest
from amaranth.hdl import UnusedElaboratable


def refused(text, kind, *arguments, **options):
    """The component is refused by a ValueError in whose text this is."""
    with warnings.catch_warnings():
        # What was refused is never used; it goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(ValueError) as error:
            kind(*arguments, **options)
        message = str(error.value)
        del error
        gc.collect()
    assert text in message
