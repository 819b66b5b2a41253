"""Searches docstrings, comments and pages for constructions that have to be read twice.

The constructions and the number of hits that each folder may still have are in ``prose.toml``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ddp_rnic
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(ddp_rnic.__file__).parent
DATA = tomllib.loads((ROOT / "tests" / "prose.toml").read_text(encoding="utf-8"))
CONSTRUCTIONS, BUDGETS = DATA["construction"], DATA.get("budget", [])
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Passage(NamedTuple):
    """A docstring, a block of comment lines or a paragraph of a page, on a single line.

    ``is_doc`` is True for a docstring; only a docstring has a first sentence with rules of its own.
    """

    line: int
    text: str
    is_doc: bool


class Hit(NamedTuple):
    """A construction that was found in a file."""

    path: Path
    line: int
    construction: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.construction}: ...{self.excerpt}..."


def joined(text: str) -> str:
    return " ".join(text.split())


def comments(source: str) -> Iterator[Passage]:
    """Yields each block of lines that are comments only, and each comment after code."""
    run: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        alone = token.line.lstrip().startswith("#")
        if run and (line != last + 1 or not alone):
            yield Passage(first, joined(" ".join(run)), False)
            run = []
        first = first if run else line
        run.append(token.string.lstrip("#: "))
        last = line if alone else 0
    if run:
        yield Passage(first, joined(" ".join(run)), False)


def docstrings(source: str) -> Iterator[Passage]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield Passage(node.body[0].lineno, joined(text), True)


def paragraphs(page: str) -> Iterator[Passage]:
    """Yields a page's paragraphs and rows of tables, without its blocks of code."""
    page = re.sub(
        r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), page, flags=re.M | re.S
    )
    line = 1
    for part in re.split(r"(\n\s*\n|\n(?=\|))", page):
        if part.strip():
            yield Passage(line, joined(part), False)
        line += part.count("\n")


def passages(path: Path) -> Iterator[Passage]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from paragraphs(text)
    else:
        yield from docstrings(text)
        yield from comments(text)


@lru_cache(maxsize=1)
def unnamed(text: str) -> str:
    """Returns a text without the names in backticks. The next construction asks for the same."""
    return re.sub(r"`[^`]+`", lambda name: "_" * len(name[0]), text)


def matches(construction: dict, passage: Passage) -> Iterator[re.Match[str]]:
    """Yields the places where a construction stands, names in backticks apart."""
    pattern = re.compile(construction["pattern"], re.IGNORECASE)
    text = unnamed(passage.text)
    if not construction.get("first"):
        yield from pattern.finditer(text)
    elif passage.is_doc and (match := pattern.match(text)):
        yield match


def hits_in(path: Path) -> list[Hit]:
    return [
        Hit(
            path.relative_to(ROOT),
            passage.line,
            construction["name"],
            passage.text[max(0, match.start() - 30) : match.end() + 30],
        )
        for passage in passages(path)
        for construction in CONSTRUCTIONS
        for match in matches(construction, passage)
    ]


def texts() -> Iterator[Path]:
    skipped = (".", "_build", "build")
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(skipped):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            parts = path.relative_to(ROOT).parts
            if path.suffix in (".py", ".md") and not any(p.startswith(skipped) for p in parts):
                yield path


def top(path: Path) -> str:
    """Returns the name in the project's root that holds ``path``."""
    return path.parts[0]


@pytest.fixture(scope="module")
def hits() -> list[Hit]:
    return [hit for path in texts() for hit in hits_in(path)]


def test_the_texts_are_found() -> None:
    found = Counter(top(path.relative_to(ROOT)) for path in texts())
    assert found["hdl"] > 50
    assert found["README.md"] == 1


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget["folders"][0])
def test_a_folder_has_no_more_hits_than_its_budget(budget: dict, hits: list[Hit]) -> None:
    found = [str(hit) for hit in hits if top(hit.path) in budget["folders"]]
    assert len(found) <= budget["hits"], "\n".join([f"{len(found)} hits", *found])


def test_a_folder_without_a_budget_has_no_hits(hits: list[Hit]) -> None:
    named = {folder for budget in BUDGETS for folder in budget["folders"]}
    assert not [str(hit) for hit in hits if top(hit.path) not in named]


@pytest.mark.parametrize("construction", CONSTRUCTIONS, ids=lambda each: each["name"])
def test_a_construction_is_found_and_its_replacement_is_not(construction: dict) -> None:
    assert construction["instead"]
    assert list(matches(construction, Passage(1, construction["bad"], True)))
    assert not list(matches(construction, Passage(1, construction["good"], True)))


def test_comments_over_two_lines_are_read_as_one() -> None:
    found = list(comments("x = 1  # one\ny = 2  # two\n# told\n# of it\n"))
    assert [(each.line, each.text) for each in found] == [(1, "one"), (2, "two"), (3, "told of it")]


def test_code_on_a_page_is_not_searched() -> None:
    page = "Text.\n\n```\ntold\n```\n\nMore.\n"
    assert [(each.line, each.text) for each in paragraphs(page)] == [(1, "Text."), (7, "More.")]
