"""Helps to test components that are refused when they are made."""

import gc
import warnings

import pytest
from amaranth.hdl import UnusedElaboratable


def refused(text, kind, *arguments, error=ValueError, **options):
    """Asserts that a component is refused, with ``text`` in the error; returns the error's text."""
    with warnings.catch_warnings():
        # A refused component is never used; its warning goes here and now.
        warnings.simplefilter("ignore", UnusedElaboratable)
        with pytest.raises(error) as refusal:
            kind(*arguments, **options)
        message = str(refusal.value)
        del refusal
        gc.collect(1)  # of the youngest objects, which takes no second as a full collection does
    assert text in message
    return message
