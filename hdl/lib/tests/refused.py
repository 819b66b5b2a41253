"""Helps to test components that are refused when they are made."""

import gc
import warnings

import pytest
from amaranth.hdl import UnusedElaboratable


def refused(text, kind, *arguments, **options):
    """Asserts that the component is refused by a ValueError whose text contains ``text``."""
    with warnings.catch_warnings():
        # A refused component is never used; its warning goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(ValueError) as error:
            kind(*arguments, **options)
        message = str(error.value)
        del error
        gc.collect()
    assert text in message
