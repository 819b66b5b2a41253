"""Tests that the audit log is bounded, and that nobody else can replace its files."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from ddp_rnic.cli.app import app
from ddp_rnic.sw_driver import Device, InvalidRequest
from ddp_rnic.sw_driver.prm import Policy, audit, connect
from ddp_rnic.sw_driver.prm.audit import Audit, LogFile
from ddp_rnic.sw_driver.tests.managed import served
from ddp_rnic.sw_driver.tests.test_prm_turns import Idle
from typer.testing import CliRunner


def lines(*paths: Path) -> list[dict]:
    """Returns the lines of a log; fails where one is not complete."""
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def test_a_full_file_is_renamed_and_the_number_of_files_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with LogFile(path, octets=1000, older=3) as file:
        log = Audit(file)
        for region in range(1000):
            log.write("register", 1, 2, region=region)
    files = sorted(tmp_path.iterdir())
    assert files == [path, *(tmp_path / f"audit.log.{at}" for at in (1, 2, 3))]
    assert all(500 < each.stat().st_size <= 1000 for each in files[1:])
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in files)
    regions = [line["region"] for line in lines(*reversed(files[1:]), path)]
    assert regions == list(range(regions[0], 1000)) and len(regions) > 20


def test_a_log_of_before_is_appended_to_and_counts_for_its_size(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for _ in range(3):
        with LogFile(path, octets=100, older=5) as file:
            file.write("x" * 59 + "\n")
    assert [each.stat().st_size for each in sorted(tmp_path.iterdir())] == [60, 60, 60]
    with LogFile(path, octets=100, older=5) as file:
        file.write("y" * 500 + "\n")  # a line longer than a file gets a file of its own
    assert path.stat().st_size == 501


def test_a_line_that_comes_again_is_counted_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(audit.time, "monotonic", lambda: clock[0])
    path = tmp_path / "audit.log"
    with LogFile(path) as file:
        log = Audit(file)
        for _ in range(500):
            # As from a program that connects again and again: two alternating lines.
            log.write("connect", 7, 8, gid=9)
            log.write("disconnect", 7, 8, reason="closed by the client")
        log.write("connect", 7, 9, gid=9)
        assert [line["pid"] for line in lines(path)] == [8, 8, 9]
        clock[0] += audit.REPEATED
        log.expire()
        log.expire()
        connects, disconnects = lines(path)[3:]
        assert connects["repeated"] == disconnects["repeated"] == 499
        assert (connects["event"], connects["pid"], connects["gid"]) == ("connect", 8, 9)
        log.write("connect", 7, 8, gid=9)
        log.write("connect", 7, 8, gid=9)
        assert "repeated" not in lines(path)[5] and len(lines(path)) == 6
        log.finish()
        assert lines(path)[6]["repeated"] == 1 and len(lines(path)) == 7


def test_no_decision_is_missing_from_the_counts_and_few_lines_are_remembered(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.log"
    with LogFile(path, octets=1 << 30) as file:
        log = Audit(file)
        for at in range(3000):
            log.write("refuse", 1, at * 7919 % 600)
            log.write("refuse", 1, 1000)
            assert len(log._lines) <= audit.REMEMBERED
        log.finish()
    counts: Counter[int] = Counter()
    for line in lines(path):
        counts[line["pid"]] += line.get("repeated", 1)
    assert counts == {**dict.fromkeys(range(600), 5), 1000: 3000}


def test_a_client_that_connects_without_end_writes_a_bounded_log(tmp_path: Path) -> None:
    path = tmp_path / "rnic.sock"
    with Device(Idle()).open() as context, served(context, path, Policy(per_user=8)) as prm:
        for _ in range(300):
            connect(path).close()
    written = [json.loads(line) for line in prm.log.getvalue().splitlines()]
    counts: Counter[str] = Counter()
    for line in written:
        counts[line["event"]] += line.get("repeated", 1)
    assert counts == {"connect": 300, "disconnect": 300}
    assert len(written) < 20


def test_a_disk_that_is_full_for_a_while_leaves_whole_lines_and_the_number_of_the_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "audit.log", os.write
    with LogFile(path) as file:
        log = Audit(file)
        log.write("connect", 1, 1)
        monkeypatch.setattr(audit.os, "write", lambda file, octets: write(file, octets[:5]))
        log.write("connect", 1, 2)
        log.write("connect", 1, 3)
        monkeypatch.setattr(audit.os, "write", write)
        log.write("connect", 1, 4)
    assert [(line["pid"], line.get("lost")) for line in lines(path)] == [(1, None), (4, 2)]


def test_where_no_new_file_can_be_had_the_older_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    with LogFile(path, octets=200, older=2) as file:
        log = Audit(file)
        for pid in range(9):
            log.write("connect", 1, pid)
        before = {each: each.read_text() for each in tmp_path.iterdir()}

        def refused(*arguments: object, **named: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(audit.os, "open", refused)
            for pid in range(100, 150):
                log.write("connect", 1, pid)
        assert {each: each.read_text() for each in tmp_path.iterdir()}.keys() == before.keys()
        log.write("connect", 1, 9)
    assert (tmp_path / "audit.log.1").read_text().startswith(before[path])
    assert lines(path)[-1]["lost"] >= 48


def linked(folder: Path) -> Path:
    (folder / "theirs").write_text("theirs")
    (folder / "log").symlink_to(folder / "theirs")
    return folder / "log"


def linked_to_nothing(folder: Path) -> Path:
    (folder / "log").symlink_to(folder / "made")
    return folder / "log"


def linked_folder(folder: Path) -> Path:
    (folder / "real").mkdir()
    (folder / "there").symlink_to(folder / "real")
    return folder / "there" / "log"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "log")
    return folder / "log"


def directory(folder: Path) -> Path:
    return folder


def no_folder(folder: Path) -> Path:
    return folder / "nowhere" / "log"


def folder_of_the_group(folder: Path) -> Path:
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o770)
    return folder / "shared" / "log"


def folder_of_all(folder: Path) -> Path:
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o1777)  # as /tmp is
    return folder / "shared" / "log"


def below_a_folder_of_all(folder: Path) -> Path:
    (folder / "shared" / "mine").mkdir(parents=True)
    (folder / "shared").chmod(0o777)
    return folder / "shared" / "mine" / "log"


def file_of_all(folder: Path) -> Path:
    (folder / "log").touch()
    (folder / "log").chmod(0o666)
    return folder / "log"


def given_away(folder: Path, path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, 65534)


def folder_of_another(folder: Path) -> Path:
    (folder / "theirs").mkdir()
    given_away(folder, folder / "theirs")
    return folder / "theirs" / "log"


def below_a_link_of_another(folder: Path) -> Path:
    (folder / "real" / "log").mkdir(parents=True)
    (folder / "theirs").symlink_to(folder / "real")
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.lchown(folder / "theirs", 65534, 65534)
    return folder / "theirs" / "log" / "log"


def file_of_another(folder: Path) -> Path:
    (folder / "log").touch()
    given_away(folder, folder / "log")
    return folder / "log"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (linked, "it is a symbolic link"),
        (linked_to_nothing, "it is a symbolic link"),
        (linked_folder, "is a symbolic link"),
        (pipe, "it is not a regular file"),
        (directory, "it is not a regular file"),
        (no_folder, "No such file or directory"),
        (folder_of_the_group, "can be written by others"),
        (folder_of_all, "can be written by others"),
        (below_a_folder_of_all, "others can replace"),
        (file_of_all, "can be written by others"),
        (folder_of_another, "belongs to user 65534"),
        (below_a_link_of_another, "others can replace"),
        (file_of_another, "belongs to user 65534"),
    ],
)
def test_a_place_that_others_can_change_is_refused_in_a_sentence_and_left_as_it_is(
    tmp_path: Path, place: Callable[[Path], Path], message: str
) -> None:
    tmp_path.chmod(0o700)
    path = place(tmp_path)
    before = {each: each.lstat() for each in tmp_path.rglob("*")}
    socket = tmp_path / "rnic.sock"
    result = CliRunner().invoke(app, ["prm", "sim", "--socket", str(socket), "--log", str(path)])
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert result.stderr.startswith("rnic: ")
    after = {each: each.lstat() for each in tmp_path.rglob("*")}
    assert after.keys() == before.keys()
    for each, status in after.items():
        assert (status.st_size, status.st_mtime_ns) == (
            before[each].st_size, before[each].st_mtime_ns
        )  # fmt: skip


def test_a_link_that_is_put_in_the_logs_place_later_is_not_followed(tmp_path: Path) -> None:
    path, theirs = tmp_path / "audit.log", tmp_path / "theirs"
    theirs.write_text("theirs")
    with LogFile(path, octets=100, older=1) as file:
        file.write("x" * 90 + "\n")
        for name in ("audit.log", "audit.log.1", "audit.log.new"):
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).symlink_to(theirs)
        file.write("y" * 90 + "\n")
        file.write("z" * 90 + "\n")
    assert theirs.read_text() == "theirs"
    assert path.read_text() == "z" * 90 + "\n" and not path.is_symlink()


def test_two_managers_do_not_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with LogFile(path, octets=100) as file:
        for _ in range(2):
            file.write("x" * 90 + "\n")  # the second time in a new file
            with pytest.raises(InvalidRequest, match="another manager writes its log to"):
                LogFile(path)
    LogFile(path).close()
