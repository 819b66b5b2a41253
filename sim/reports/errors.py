"""Explains error numbers: the name, the sentence of the RFC, and advice.

Layers, Error Types and Error Codes are those of a Terminate message (RFC 5040 section 4.8); DDP's
are in RFC 5041 section 7.2, those of MPA in RFC 5044 section 8 and RFC 6581 section 8.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...hdl.spec.ddp import ERROR_TEXT, ErrorNumber, ErrorType
from ...sw_driver.rdmap.wire import ERRORS, Layer
from ..model import checks

__all__ = ["Meaning", "Sentence", "meaning_of", "meanings"]

_TABLE = Path(__file__).parents[1] / "data" / "errors.toml"
_NUMBER = r"(?:0[xX][0-9a-fA-F]+|\d+)"
#: An optional layer, by name or number, then Error Type and Error Code.
_TEXT = re.compile(rf"(?:([A-Za-z]+|{_NUMBER})\s*[/: ]\s*)?({_NUMBER})\s*/\s*({_NUMBER})")
_ANY_CODE = Layer.RDMA, 0
_NAMES = {"rdmap": Layer.RDMA, "mpa": Layer.LLP}


@dataclass(frozen=True)
class Sentence:
    """A sentence of an RFC, and the section where it stands."""

    section: str
    text: str


@dataclass(frozen=True)
class Meaning:
    """The meaning of an error number.

    Parameters
    ----------
    layer, type, code
        As in a Terminate message.
    name
        The RFC's name of the error.
    sentences
        The sentences that the segment or message violates.
    advice
        Remedies that a user may try.
    """

    layer: Layer
    type: int
    code: int
    name: str
    sentences: tuple[Sentence, ...]
    advice: str

    def __str__(self) -> str:
        return f"{self.layer.name} {self.type:#x}/{self.code:#04x} {self.name}"


@cache
def _table() -> dict[tuple[Layer, int, int], dict[str, Any]]:
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))["error"]
    return {(Layer[row["layer"]], row["type"], row["code"]): row for row in rows}


def check_sentence(check: checks.Check) -> Sentence:
    """Returns the sentence of a check of RFC 5041, with its number in the section's list."""
    item = f", check {check.item}" if check.item else ""
    return Sentence(f"RFC 5041 section {check.section}{item}", check.text)


def meaning_of(layer: Layer, type: int, code: int, *, sctp: bool = False) -> Meaning | None:
    """Returns the meaning of an error, or None if no RFC names it.

    ``sctp``: the advice is for a DDP Stream over SCTP, where MPA is not in use.
    """
    row = _table().get((layer, type, 0 if (layer, type) == _ANY_CODE else code))
    if row is None:
        return None
    name = ERRORS[layer].get((type, code), "Local Catastrophic")
    sentences: list[Sentence] = []
    if layer is Layer.DDP:
        number = ErrorNumber(ErrorType(type), code)
        name = ERROR_TEXT[number]
        found = [check for check in checks.TAGGED + checks.UNTAGGED if check.number == number]
        sentences += dict.fromkeys(map(check_sentence, found))
    if "sentence" in row:
        sentences.append(Sentence(row["section"], row["sentence"]))
    advice = row.get("over_sctp", row["advice"]) if sctp else row["advice"]
    return Meaning(layer, type, code, name, tuple(sentences), advice)


def meanings(text: str) -> list[Meaning]:
    """Returns the errors that a text as ``0x1/0x03`` or ``RDMA 0x1/0x03`` may mean.

    Without a layer, these are the errors of every layer that has the numbers. DDP's Error Type 0x3
    is that of the LLP (RFC 5041 section 7.2), whose own Error Type is 0.

    Raises
    ------
    ValueError
        The text is no error number, or no RFC names the error. The message is one sentence.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"an error must be TYPE/CODE or LAYER/TYPE/CODE, as 0x1/0x03 or RDMA/0x1/0x03, not"
            f" {text!r}"
        )
    asked = [*Layer] if match[1] is None else [_layer(match[1])]
    type, code = (int(each, 0 if each[:2] in ("0x", "0X") else 10) for each in match.groups()[1:])
    found = []
    for layer in asked:
        own = layer, type
        if layer is Layer.DDP and type == ErrorType.LLP:
            own = Layer.LLP, 0
        if (meaning := meaning_of(*own, code)) is not None and meaning not in found:
            found.append(meaning)
    if not found:
        layers = "no layer has" if match[1] is None else f"{asked[0].name} does not have"
        raise ValueError(
            f"{layers} the error {type:#x}/{code:#04x}: RFC 5040 section 4.8, RFC 5041 section 7.2"
            " and RFC 5044 section 8 list the errors"
        )
    return found


def _layer(text: str) -> Layer:
    known = {layer.name.lower(): layer for layer in Layer} | _NAMES
    if text.lower() in known:
        return known[text.lower()]
    try:
        return Layer(int(text, 0))
    except ValueError:
        names = ", ".join(f"{layer.name} ({layer.value})" for layer in Layer)
        raise ValueError(f"the layer of an error must be one of {names}, not {text!r}") from None
