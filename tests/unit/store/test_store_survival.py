"""The store against kill -9, damage, newer releases, full and read-only disks."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from loopopt.errors import StoreError
from loopopt.store import Store, TrialRow, WindowRow, schema

WRITER = """
import sys
from pathlib import Path
from loopopt.store import Store, WindowRow
store = Store.open(Path(sys.argv[1]))
n = int((store.get_state("loop") or {"n": 0})["n"])
while True:
    n += 1
    with store.batch():
        store.set_state("loop", {"n": n})
        store.add_window(WindowRow(f"w{n}", "p", n, 1, 0.0, {"filler": "x" * 3000}))
        store.increment("written")
    store.add_steps(0, 2 * n, "p", "plain", [float(n)])
    print(n, flush=True)
    if n % 40 == 0:
        store.prune(max_bytes=10**9, max_windows=10**6)
"""


def test_kill_9_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Killed while writing, again and again: the file is sound and every row reported as written is there."""
    path = tmp_path / "state.sqlite"
    acknowledged: list[int] = []
    for wanted in (1, 7, 40, 23):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(wanted):
            line = child.stdout.readline()
            assert line, "the writer died by itself"
            acknowledged.append(int(line))
        os.kill(child.pid, signal.SIGKILL)
        for line in child.stdout:  # written between the last line read and the kill
            if line.endswith("\n"):
                acknowledged.append(int(line))
        child.wait()
        child.stdout.close()
        with Store.open(path) as store:
            assert store.notes == ()
            state = store.get_state("loop")
            assert state is not None
            written = state["n"]
            assert written in (acknowledged[-1], acknowledged[-1] + 1)
            assert len(store.latest_windows(10**6)) == written
            assert [c.value for c in store.counters()] == [float(written)]
            steps = [run.first_step // 2 for run in store.steps_since()]
            assert steps == sorted(steps)
            assert set(acknowledged) <= set(steps)
        check = sqlite3.connect(path)
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        check.close()
    assert len(acknowledged) >= 71


def test_a_process_killed_while_creating_leaves_a_usable_path(tmp_path: Path) -> None:
    """An empty file, as left by a process killed between creating and filling it, is simply filled."""
    path = tmp_path / "state.sqlite"
    path.touch()
    with Store.open(path) as store:
        store.set_state("loop", {"n": 1})
        assert store.notes == ()
    with Store.open(path) as store:
        assert store.get_state("loop") == {"n": 1}


def _filled(path: Path) -> None:
    with Store.open(path) as store:
        for number in range(50):
            store.add_window(WindowRow(f"w{number}", "p", number, 1, 0.0, {"filler": os.urandom(2000).hex()}))
        store.prune(max_bytes=10**9, max_windows=10**6)


def _overwrite_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"this is no database at all")


def _overwrite_middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size // 2))


def _cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 123)


@pytest.mark.parametrize("damage", [_overwrite_header, _overwrite_middle, _cut_in_half])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """A damaged database is kept under another name, said so, and an empty one works in its place."""
    path = tmp_path / "state.sqlite"
    _filled(path)
    damage(path)
    damaged = path.read_bytes()
    with Store.open(path) as store:
        (note,) = store.notes
        assert str(path) in note
        assert "state.sqlite.corrupt-1" in note
        assert store.latest_windows(9) == ()
        store.set_state("loop", {"n": 1})
    assert (tmp_path / "state.sqlite.corrupt-1").read_bytes() == damaged
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.get_state("loop") == {"n": 1}


def test_damaged_copies_are_numbered_and_few(tmp_path: Path) -> None:
    """Each damaged file gets its own number, and only the newest few are kept."""
    path = tmp_path / "state.sqlite"
    for _ in range(5):
        path.write_bytes(b"rubbish " * 1000)
        Store.open(path).close()
    kept = sorted(p.name for p in tmp_path.iterdir() if "corrupt" in p.name)
    assert kept == [f"state.sqlite.corrupt-{n}" for n in (3, 4, 5)]


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A file of a newer release is an error that says what to do, and is not changed."""
    path = tmp_path / "state.sqlite"
    with Store.open(path) as store:
        store.set_state("loop", {"n": 1})
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    raw.close()
    with pytest.raises(StoreError, match=r"state\.sqlite: schema version \d+ was written by a newer loopopt"):
        Store.open(path)
    assert [p.name for p in tmp_path.iterdir() if "corrupt" in p.name] == []
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT value FROM state").fetchall() == [('{"n":1}',)]
    raw.close()


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """A database that is not ours is never written to."""
    path = tmp_path / "state.sqlite"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE bookmarks (url TEXT)")
    raw.close()
    with pytest.raises(StoreError, match="another program"):
        Store.open(path)
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("bookmarks",)]
    raw.close()


@pytest.mark.parametrize("kind", ["directory", "below a file"])
def test_an_unusable_path_is_named(tmp_path: Path, kind: str) -> None:
    """A path that cannot be a database is an error that names it."""
    path = tmp_path / "state.sqlite"
    if kind == "directory":
        path.mkdir()
    else:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "state.sqlite"
    with pytest.raises(StoreError, match=r"state\.sqlite: "):
        Store.open(path)


def test_the_file_is_private(tmp_path: Path) -> None:
    """Only the owner can read the state, side files included."""
    path = tmp_path / "state.sqlite"
    with Store.open(path) as store:
        store.set_state("loop", {"n": 1})
        modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert set(modes) == {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm"}
    assert set(modes.values()) == {0o600}


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process (limits and user ids cannot be taken back); 0 if it raised nothing."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must never run the rest of the test session
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_full_disk_is_an_error_and_the_store_goes_on(tmp_path: Path) -> None:
    """With no room left a write is an error naming the path; what was there stays, and room again means work again."""
    path = tmp_path / "state.sqlite"
    with Store.open(path) as store:
        store.set_state("loop", {"n": 1})
        store._connection.execute("PRAGMA max_page_count = 40")

        def too_much() -> None:
            with store.batch():
                store.set_state("loop", {"n": 2})
                store.add_window(WindowRow("w", "p", 0, 1, 0.0, {"filler": os.urandom(400_000).hex()}))

        with pytest.raises(StoreError, match=r"state\.sqlite: .*full; free some space"):
            too_much()
        assert store.get_state("loop") == {"n": 1}
        assert store.window("w") is None
        store._connection.execute("PRAGMA max_page_count = 1000000")
        store.set_state("loop", {"n": 3})
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.get_state("loop") == {"n": 3}


def test_a_batch_that_met_a_full_disk_writes_nothing_piecemeal(tmp_path: Path) -> None:
    """Whoever goes on with a batch after a failed write cannot commit the half of it."""
    with Store.open(tmp_path / "state.sqlite") as store:
        store._connection.execute("PRAGMA max_page_count = 40")

        def stubborn() -> None:
            with store.batch():
                store.increment("first")
                try:
                    store.add_window(WindowRow("w", "p", 0, 1, 0.0, {"filler": os.urandom(400_000).hex()}))
                except StoreError:
                    store.increment("second")

        with pytest.raises(StoreError):
            stubborn()
        assert store.counters() == ()


def test_a_file_size_limit_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """When the operating system refuses to let the file grow, writing is a StoreError and the file stays sound."""
    path = tmp_path / "state.sqlite"

    def work() -> None:
        with Store.open(path) as store:
            store.set_state("loop", {"n": 1})
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            with pytest.raises(StoreError, match=r"state\.sqlite: "):
                store.add_window(WindowRow("w", "p", 0, 1, 0.0, {"filler": os.urandom(400_000).hex()}))
            assert store.get_state("loop") == {"n": 1}

    assert in_child(work) == 0
    with Store.open(path) as store:
        assert store.notes == ()
        assert store.get_state("loop") == {"n": 1}
        assert store.window("w") is None


@pytest.mark.parametrize("existing", [False, True])
def test_a_read_only_directory_is_an_error(existing: bool) -> None:
    """Where nothing may be written, opening is a StoreError that names the path."""
    # Not below tmp_path: the parents of that are closed to the unprivileged user the child becomes.
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        path = directory / "state.sqlite"
        if existing:
            Store.open(path).close()
            path.chmod(0o444)
        directory.chmod(0o555)

        def work() -> None:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            with pytest.raises(StoreError, match=rf"{path}: .*writable"):
                Store.open(path)

        try:
            assert in_child(work) == 0
        finally:
            directory.chmod(0o755)


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    """A reader in another process sees what was committed while the writer has the file open."""
    path = tmp_path / "state.sqlite"
    with Store.open(path) as store:
        store.add_trial(TrialRow("t1", "p", "label"))
        script = (
            "import sys; from pathlib import Path; from loopopt.store import Store\n"
            "s = Store.open(Path(sys.argv[1])); print(s.trials()[0].trial_id); s.increment('seen')"
        )
        done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
        assert done.stdout == "t1\n"
        assert [(c.name, c.value) for c in store.counters()] == [("seen", 1.0)]
