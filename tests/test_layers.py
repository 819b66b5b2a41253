"""Every import stands in ``layers.toml``, and no files import each other in a circle."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import ddp_rnic
import pytest

ROOT = Path(ddp_rnic.__file__).parent
PACKAGE = "ddp_rnic"
TABLE = tomllib.loads((ROOT / "tests" / "layers.toml").read_text(encoding="utf-8"))
ROOMS: dict[str, list[str]] = TABLE["rooms"]
OUTSIDE: dict[str, list[str]] = TABLE["outside"]
#: The LLPs. DDP must not depend on any of them.
LLPS = ("hdl/mpa", "hdl/sctp", "hdl/tcp", "hdl/ip")

#: The files that know which LLPs a device has.
ASSEMBLY = {"hdl/rnic.py", "hdl/control.py", "hdl/flat.py"}

Graph = Mapping[str, set[str]]


def sources(root: Path) -> list[Path]:
    """Returns the paths of all Python files that are not tests, relative to the root."""
    found = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(
        path
        for path in found
        if not any(part.startswith(".") or part in ("tests", "build") for part in path.parts)
        and path.name not in ("conftest.py", "run.py")
    )


def imports(root: Path, path: Path) -> Iterator[tuple[str, str | None]]:
    """Yields the module and name of every import in a file, including those in functions."""
    here = (PACKAGE, *path.parts)
    for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None
        elif isinstance(node, ast.ImportFrom):
            start = here[: len(here) - node.level] if node.level else ()
            module = ".".join((*start, node.module or "")).strip(".")
            for alias in node.names:
                yield module, alias.name


def file_of(root: Path, module: str, name: str | None) -> str | None:
    """Returns the file that an import reads; None if the file belongs to another project."""
    if module.partition(".")[0] != PACKAGE:
        return None
    parts = module.split(".")[1:]
    for each in ([*parts, name] if name else parts), parts:
        place = Path(*each)
        for file in (place.with_suffix(".py") if each else place, place / "__init__.py"):
            if (root / file).is_file():
                return file.as_posix()
    raise AssertionError(f"{module} is no module")


def graph_of(root: Path) -> dict[str, set[str]]:
    """Returns, for each file of the project, the files that it imports."""
    graph = {}
    for path in sources(root):
        found = {file_of(root, *each) for each in imports(root, path)}
        # All rooms may import the version from the package's own __init__.py.
        graph[path.as_posix()] = {file for file in found if file} - {path.as_posix(), "__init__.py"}
    return graph


def room_of(file: str) -> str:
    return Path(file).parent.as_posix()


def circle_of(graph: Graph) -> list[str]:
    """Returns files that import each other in a circle; an empty list if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return graph_of(ROOT)


def test_each_folder_imports_what_its_row_names_and_nothing_else(graph: Graph) -> None:
    found: dict[str, set[str]] = {room_of(file): set() for file in graph}
    for file, read in graph.items():
        for each in read:
            if room_of(each) != room_of(file):
                assert room_of(each) in ROOMS.get(room_of(file), ()), f"{file} imports {each}"
                found[room_of(file)].add(room_of(each))
    assert sorted(found) == sorted(ROOMS), "a folder without a row, or a row without a folder"
    for room, rows in ROOMS.items():
        assert room == "cocotb_tests" or not any("tests" in Path(row).parts for row in rows), room
        assert rows == sorted(found[room]), f"{room}: an import that no file needs, or no order"


def test_no_files_import_each_other_in_a_circle(graph: Graph) -> None:
    assert not circle_of(graph)


def test_no_folders_import_each_other_in_a_circle() -> None:
    # The files directly in ``hdl`` assemble the device, and ``hdl/host`` puts it on a board.
    assert not circle_of({room: set(rows) for room, rows in ROOMS.items()})


def test_the_gateware_imports_nothing_but_gateware() -> None:
    for room, rows in ROOMS.items():
        if room.split("/")[0] == "hdl":
            assert all(row.split("/")[0] == "hdl" for row in rows), room
    assert not ROOMS["hdl/spec"] and not ROOMS["hdl/lib"]
    assert not {*ROOMS["hdl/ddp"], *ROOMS["hdl/dma"]} & {*LLPS}


def test_an_llp_is_chosen_only_where_the_device_is_assembled() -> None:
    # Blocks have parameters that name a property, such as ``unordered``.
    chosen = re.compile(r"\b(config|CONFIG)\.(mpa|sctp|both)\b")
    found = {
        path.as_posix()
        for path in sources(ROOT)
        if path.parts[0] == "hdl" and chosen.search((ROOT / path).read_text(encoding="utf-8"))
    }
    assert "hdl/rnic.py" in found
    assert {path for path in found if not path.startswith("hdl/spec/")} <= ASSEMBLY


def test_the_driver_imports_the_facts_of_the_gateware_alone() -> None:
    for room, rows in ROOMS.items():
        if room.split("/")[0] == "sw_driver":
            assert all(row == "hdl/spec" or row.startswith("sw_driver") for row in rows), room


@pytest.mark.parametrize("folder", OUTSIDE)
def test_a_folder_imports_other_projects_only_as_its_row_says(folder: str) -> None:
    found = set()
    for path in sources(ROOT):
        if path.is_relative_to(folder):
            found |= {module.partition(".")[0] for module, _ in imports(ROOT, path)}
    assert sorted(found - sys.stdlib_module_names - {PACKAGE}) == OUTSIDE[folder]


def test_a_circle_is_found_even_if_its_imports_are_in_functions(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "one.py").write_text("from .room.two import two\n")
    (tmp_path / "room" / "two.py").write_text("def two():\n    from .. import one\n")
    (tmp_path / "three.py").write_text("from ddp_rnic import one\nimport json\n")
    graph = graph_of(tmp_path)
    assert graph == {"one.py": {"room/two.py"}, "room/two.py": {"one.py"}, "three.py": {"one.py"}}
    assert set(circle_of(graph)) == {"one.py", "room/two.py"}
    graph["room/two.py"].clear()
    assert not circle_of(graph)
