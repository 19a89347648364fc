"""The store: bytes by key, shared by processes, up to a budget, and never a wrong byte."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.loader.cache import store as module
from hasten.loader.cache.store import Account, Store

KEYS = st.binary(max_size=12)


def read(store, key):
    found = store.get(key)
    return None if found is None else bytes(found)


def in_child(act):
    """Run `act` in a forked process; return whether it was true."""
    pid = os.fork()
    if pid == 0:
        status = 2
        with contextlib.suppress(BaseException):
            status = 0 if act() else 1
        os._exit(status)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.binary(max_size=300), st.booleans()), max_size=60))
def test_gives_back_what_was_put(entries) -> None:
    store, expected = Store(1 << 17), {}
    for key, value, replace in entries:
        known = key in expected
        assert store.put(key, value[:5], value[5:], replace=replace) == (replace or not known)
        if replace or not known:
            expected[key] = value
    for key, value in expected.items():
        assert read(store, key) == value


def test_a_key_that_is_there_keeps_its_bytes_unless_they_are_replaced() -> None:
    store = Store(1 << 17)
    assert store.put(b"1", b"old")
    assert not store.put(b"1", b"new")
    old = store.get(b"1")
    assert store.put(b"1", b"new", replace=True)
    assert read(store, b"1") == b"new"
    assert bytes(old) == b"old"
    assert store.counts()["entries"] == 1


def test_refuses_when_it_is_full_and_goes_on_giving() -> None:
    store = Store(1 << 17)
    taken = [store.put(b"%d" % key, bytes([key]) * 5000) for key in range(60)]
    assert taken.count(True) == taken.index(False) > 10
    assert not store.has_room(5000)
    for key in range(taken.index(False)):
        assert read(store, b"%d" % key) == bytes([key]) * 5000
    assert store.put(b"1000", b"small")


def test_refuses_when_its_table_is_full() -> None:
    store = Store(1 << 16)
    taken = sum(store.put(b"%d" % key, b"") for key in range(200))
    assert taken == 64
    assert read(store, b"1000") is None


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        Store(1000)


def test_several_entries_are_taken_in_at_once_as_far_as_they_fit() -> None:
    store = Store(1 << 20)
    assert store.put(b"1", b"old")
    big = bytes(1 << 21)
    entries = [
        (b"1", [b"new"], False),
        (b"2", [b"two", b"", b"parts"], False),
        (b"3", [big], False),
    ]
    assert store.put_all([*entries, (b"4", [], False)]) == 2
    assert [store.get(b"%d" % key) for key in (1, 2, 3, 4)] == [b"old", b"twoparts", None, b""]
    assert store.put_all([(b"1", [b"new"], True), (b"1", [b"newer"], True)]) == 2
    assert store.get(b"1") == b"newer"
    assert store.put_all([]) == 0
    taken = store.counts()["bytes"]
    assert store.put_all([(b"5", [bytes(5000)], False)] * 3) == 1
    assert store.counts()["bytes"] - taken < 2 * 5000, "a key takes memory once"


def test_memory_without_a_key_counts_as_entries_and_is_nobody_elses() -> None:
    store = Store(1 << 17)
    first, second = store.lay(100, 3), store.lay(100, 0)
    first[:], second[:] = b"a" * 100, b"b" * 100
    assert store.counts() == {"entries": 3, "bytes": 256}
    assert store.put(b"1", b"c")
    assert (bytes(first), bytes(second), read(store, b"1")) == (b"a" * 100, b"b" * 100, b"c")
    assert store.lay(1 << 20, 1) is None
    assert store.counts()["entries"] == 4


def test_takes_memory_only_for_what_is_put() -> None:
    store = Store(1 << 40 if sys.maxsize > 2**32 else 1 << 28)
    store.put(b"1", b"x")
    assert os.fstat(store._fd).st_blocks * 512 < 1 << 24


def test_bytes_begin_where_vectors_may() -> None:
    store = Store(1 << 17)
    for key in range(5):
        store.put(b"%d" % key, bytes(key + 1))
    starts = [store._find(*module._halves(b"%d" % key))[1] for key in range(5)]
    assert [start % 64 for start in starts] == [0] * 5


def test_holds_its_bytes_on_disk_on_request_and_leaves_no_file(tmp_path) -> None:
    store = Store(1 << 17, spill_dir=str(tmp_path))
    store.put(b"1", b"x" * 1000)
    assert read(store, b"1") == b"x" * 1000
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Store(1 << 17, spill_dir=str(tmp_path / "nowhere"))


def test_a_full_disk_refuses_and_kills_nobody(monkeypatch) -> None:
    store = Store(1 << 17)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert not store.put(b"1", b"x")


def test_gives_its_memory_back_when_nobody_holds_it() -> None:
    store = Store(1 << 17)
    fd = store._fd
    view = store.get(b"1") or (store.put(b"1", b"kept") and store.get(b"1"))
    del store
    assert bytes(view) == b"kept"
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_writer_that_is_at_work_does_not_undo_a_release(monkeypatch) -> None:
    account = Account()
    store = Store(1 << 20, account=account)
    allocate = os.posix_fallocate

    def released_meanwhile(*args):
        store.release()
        allocate(*args)

    monkeypatch.setattr(os, "posix_fallocate", released_meanwhile)
    store.put(b"late", b"x")
    assert account.beside(-1) == 0
    assert not store.has_room(1)
    assert not store.put(b"later", b"x")
    assert Store(1 << 20, account=account).put(b"another", b"x")


def test_stores_on_one_account_share_a_budget_and_one_that_is_released_makes_room() -> None:
    account = Account()
    first, second = (Store(1 << 17, account=account) for _ in range(2))
    assert first.put(b"1", bytes(70000))
    assert not second.put(b"1", bytes(70000))
    assert second.put(b"2", bytes(20000))
    assert not first.has_room(40000)
    first.release()
    assert second.put(b"1", bytes(70000))
    assert not first.put(b"2", b"x")
    assert read(first, b"1") == bytes(70000), "whoever reads may go on"
    del first
    third = Store(1 << 17, account=account)
    assert not third.has_room(40000), "the room was given away once"


def test_threads_of_one_process_write_without_loss() -> None:
    store = Store(1 << 22)

    def write(part):
        for key in range(part, 200, 4):
            until = time.monotonic() + 30
            while not store.put(b"%d" % key, b"%d" % key * 50) and time.monotonic() < until:
                pass

    threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    missing = [key for key in range(200) if read(store, b"%d" % key) != b"%d" % key * 50]
    assert missing == []


@pytest.mark.child
def test_forked_processes_write_and_read_what_the_others_wrote() -> None:
    store = Store(1 << 22)

    def value(key):
        return b"%d" % key * (key % 50 + 1)

    def work(part):
        for key in range(300):
            if key % 3 == part or key % 7 == 0:
                store.put(b"%d" % key, value(key))
            for other in range(0, 300, 17):
                if (found := read(store, b"%d" % other)) is not None and found != value(other):
                    return False
        return True

    pids = [in_child(lambda part=part: work(part)) for part in range(3)]
    assert [ended(pid) for pid in pids] == [0, 0, 0]
    there = [key for key in range(300) if read(store, b"%d" % key) == value(key)]
    wrong = [key for key in range(300) if read(store, b"%d" % key) not in (None, value(key))]
    assert wrong == []
    assert len(there) > 250  # a put may give way to another writer


@pytest.mark.child
def test_a_writer_that_is_killed_while_it_holds_the_lock_stops_nobody() -> None:
    store = Store(1 << 20)
    ready, told = os.pipe()

    def hold():
        store.account.locked(lambda: os.write(told, b"x") and time.sleep(60))

    pid = in_child(hold)
    assert os.read(ready, 1) == b"x"
    assert not store.put(b"1", b"refused while it is alive")
    os.kill(pid, signal.SIGKILL)
    assert ended(pid) == -signal.SIGKILL
    assert store.put(b"1", b"taken")
    assert read(store, b"1") == b"taken"
    os.close(ready)
    os.close(told)


@pytest.mark.child
def test_a_writer_that_is_killed_in_the_middle_leaves_no_half_entry() -> None:
    store = Store(1 << 24)
    large = bytes(range(256)) * 400

    def write():
        key = 0
        while True:
            store.put(b"%d" % (key % 40), large, replace=True)
            key += 1

    found = set()
    for _ in range(15):
        pid = in_child(write)
        time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL, "it was writing"
        found |= {read(store, b"%d" % key) for key in range(40)}
    assert large in found <= {None, large}
    assert store.put(b"after", b"x") or not store.has_room(1)


def test_a_slot_that_was_never_finished_is_not_read_and_is_used_again() -> None:
    store = Store(1 << 17)
    high, low = module._halves(b"1")
    slot = next(store._probe(low))
    module._SLOT.pack_into(store._map, slot, high, low, store._arena, 4, 12345)
    assert read(store, b"1") is None
    assert store.put(b"1", b"whole")
    assert read(store, b"1") == b"whole"


SPAWNED = """
import pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1]))
assert bytes(store.get(b"1")) == b"from the parent"
assert store.put(b"2", b"from the child")
assert not store.has_room(1 << 16)
store.account.note(5, 1)
"""


@pytest.mark.child
def test_a_spawned_process_gets_the_same_memory_by_pickle() -> None:
    account = Account()
    beside, store = (Store(1 << 17, account=account) for _ in range(2))
    beside.put(b"1", bytes(1 << 16))
    store.put(b"1", b"from the parent")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SPAWNED, pickle.dumps(store).hex()]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read(store, b"2") == b"from the child"
    assert account.beside(4) - account.beside(5) == 1, "what it takes counts here, too"
