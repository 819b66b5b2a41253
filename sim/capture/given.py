"""Reads text files that a user gives, within bounds."""

from __future__ import annotations

from pathlib import Path

from .piped import Unkept, open_again

__all__ = ["read_text"]

#: Most octets of a file, and most characters of a line. A region file with an entry for every STag
#: of the largest table has 8 MB.
LONGEST, LONGEST_LINE = 1 << 24, 10_000


def read_text(path: Path) -> str:
    """Returns the text of a file, or of a pipe, which is read once for all calls.

    Raises
    ------
    ValueError
        The file cannot be read, is not text, or is too long. The message begins with the path.
    """
    try:
        with open_again(path) as file:
            octets = file.read(LONGEST + 1)
    except Unkept as error:
        raise ValueError(str(error)) from None
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{path} cannot be read: {why}") from None
    if len(octets) > LONGEST:
        raise ValueError(f"{path} must be at most {LONGEST >> 20} MB long")
    try:
        text = octets.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: octet {error.start} is not UTF-8") from None
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{path}, line {number}: a line must have at most {LONGEST_LINE} characters,"
                f" not {len(line)}"
            )
    return text
