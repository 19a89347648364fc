import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hasten.errors import IsolationFailed
from hasten.trials.isolation import landlock
from hasten.trials.isolation.merged_view import MergedView
from hasten.trials.process import Exit, Isolation

needs_landlock = pytest.mark.skipif(
    landlock.version() < 2, reason="this kernel has no Landlock that knows renames"
)

TRAINING = """
import os, sys
import numpy as np, torch
if os.environ.get("HASTEN_REDIRECT"):
    from hasten.trials.isolation import redirect
    redirect.after_torch()
from torch.utils.data import DataLoader
from torch.utils.tensorboard import SummaryWriter

class Logged(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        with open("seen.txt", "a") as f: f.write(f"{i}\\n")
        return torch.tensor(i)

with SummaryWriter("runs/board") as board:
    board.add_scalar("loss", 1.0, 0)
assert len(os.listdir("runs/board")) == 1
list(DataLoader(Logged(), num_workers=2))
assert sorted(open("seen.txt").read().split()) == list("0123")
model = torch.nn.Linear(2, 2)
torch.save(model.state_dict(), "weights/a.bin")
torch.save(model.state_dict(), "weights/a.bin", _use_new_zipfile_serialization=False)
torch.save(model.state_dict(), "model.pt")
torch.jit.save(torch.jit.script(model), "scripted.pt")
torch.jit.load("scripted.pt")
for name in ("weights/a.bin", "model.pt"):
    assert torch.equal(torch.load(name)["weight"], model.weight)
assert torch.equal(torch.load("model.pt", mmap=True)["weight"], model.weight)
np.save("x.npy", np.arange(3)); np.savez("x.npz", a=np.arange(3))
m = np.memmap("m.dat", dtype="int32", mode="w+", shape=3); m[:] = 7; m.flush()
assert np.load("x.npz")["a"].sum() + np.memmap("m.dat", dtype="int32").sum() == 24
print("trained")
"""


@pytest.mark.child
def test_a_training_script_leaves_no_trace(begin, project, trials, isolation) -> None:
    before = trials.fingerprint(project)
    process = begin([sys.executable, "-W", "ignore", "-c", TRAINING], isolation, cwd=project)
    assert process.wait(60) == Exit(0, None), process.output()
    assert process.output().endswith("trained\n")
    assert process.refused == ()
    assert trials.fingerprint(project) == before


@pytest.mark.child
def test_python_children_share_the_view(begin, project, trials) -> None:
    before = trials.fingerprint(project)
    code = (
        "import subprocess, sys; open('mine', 'w').write('1')\n"
        'inner = \'print(open("mine").read()); open("theirs", "w").write("2")\'\n'
        "subprocess.run([sys.executable, '-c', inner], check=True); print(open('theirs').read())"
    )
    process = begin(code, Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "1\n2\n"
    assert trials.fingerprint(project) == before


@pytest.mark.child
@needs_landlock
def test_another_program_s_write_is_refused_before_it_happens(begin, project, trials) -> None:
    before = trials.fingerprint(project)
    process = begin(["sh", "-c", "rm -r runs; echo x > log.csv"], Isolation.REDIRECT, cwd=project)
    ended = process.wait(30)
    assert ended is not None
    assert ended.code != 0
    assert trials.fingerprint(project) == before
    assert process.refused == (f"{project}/log.csv",)


@pytest.mark.child
@needs_landlock
def test_a_native_write_is_refused(begin, project, trials) -> None:
    before = trials.fingerprint(project)
    code = (
        "import ctypes, errno\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.open(b'log.csv', 1025, 0o600) == -1\n"
        "assert libc.unlink(b'log.csv') == libc.rename(b'runs', b'walks') == -1\n"
        "print(errno.errorcode[ctypes.get_errno()])"
    )
    process = begin(code, Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "EACCES\n"
    assert trials.fingerprint(project) == before


@pytest.mark.child
@needs_landlock
def test_what_changes_a_file_by_ioctl_is_refused_and_what_looks_at_one_is_not(
    begin, project
) -> None:
    code = (
        "import errno, fcntl, os\n"
        "fd = os.open('log.csv', os.O_RDONLY)\n"
        "for request in {requests}:\n"
        "    try: fcntl.ioctl(fd, request, bytes(64))\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "    else: print('done')"
    )
    changing = (  # flags, extended flags, version, verity, a snapshot and a subvolume of Btrfs
        0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40806685, 0x50009401, 0x5000940E,
    )  # fmt: skip
    looking = (0x80086601, 0x801C581F, 0x80087601, 0x40049409)  # the last one copies (FICLONE)
    process = begin(code.format(requests=changing), Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output().split() == ["EACCES"] * len(changing)
    process = begin(code.format(requests=looking), Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert "EACCES" not in process.output()


@pytest.mark.child
def test_a_pipe_of_the_user_s_is_changed_in_copy_and_nobody_waits(begin, project) -> None:
    os.mkfifo(project / "pipe", 0o644)
    os.mkfifo(project / "runs" / "pipe")
    code = (
        "import os; os.chmod('pipe', 0o600); os.rename('runs', 'walks'); print(os.listdir('walks'))"
    )
    process = begin(code, Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert "pipe" in process.output()
    assert (project / "pipe").stat().st_mode & 0o777 == 0o644


@pytest.mark.child
def test_a_write_that_gets_around_python_s_open_is_refused_by_name(begin, project, trials) -> None:
    before = trials.fingerprint(project)
    process = begin("import io; io.FileIO('log.csv', 'w')", Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(1, None)
    assert "PermissionError" in process.errors()
    assert process.refused == (f"{project}/log.csv",)
    assert trials.fingerprint(project) == before


@pytest.mark.child
def test_errors_and_names_are_those_of_the_script(begin, project) -> None:
    code = (
        "import os, pathlib\n"
        "print(open('new.txt', 'w').name, open('new.txt').name)\n"
        "for act in (lambda: open('nope'), lambda: os.rmdir('data'), lambda: os.mkdir('data'),\n"
        "            lambda: os.remove('nope'), lambda: os.rename('nope', 'x'),\n"
        "            lambda: os.remove('data'), lambda: os.listdir('nope'),\n"
        "            lambda: open('new.txt', 'x'), lambda: os.rmdir('log.csv'),\n"
        "            lambda: pathlib.Path('a/b').mkdir(), lambda: open('data', 'w')):\n"
        "    try: act()\n"
        "    except OSError as e: print(type(e).__name__, e)\n"
        "    else: print('fine')\n"
    )
    said = []
    for isolation in (Isolation.REDIRECT, Isolation.NONE):  # last, since it writes for real
        process = begin(code, isolation, cwd=project)
        assert process.wait(30) == Exit(0, None), process.output()
        said.append(process.output())
    assert said[0] == said[1]


@pytest.mark.child
def test_a_working_directory_in_shared_memory_is_refused(begin) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        pytest.raises(IsolationFailed, match=f"would write to the real {folder}"),
    ):
        begin("open('x', 'w')", Isolation.REDIRECT, cwd=folder)


@pytest.mark.child
def test_globbing_sees_what_the_trial_did(begin, project) -> None:
    code = (
        "import os; from pathlib import Path\n"
        "os.makedirs('runs/new'); open('runs/new/log.txt', 'w').close()\n"
        "os.remove('runs/old/log.txt')\n"
        "print(*Path('runs').rglob('*.txt'), *Path('.').glob('runs/*/log.txt'))"
    )
    # From Python 3.13 on pathlib goes another way.
    line = 'python3.13 -c "" 2>/dev/null && exec python3.13 -c "$0" || exec "$1" -c "$0"'
    command = ["sh", "-c", line, code, sys.executable]
    process = begin(command, Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "runs/new/log.txt runs/new/log.txt\n"


@pytest.mark.child
def test_temporary_files_lie_where_native_code_may_write_too(begin, tmp_path) -> None:
    process = begin("import tempfile; print(tempfile.mkdtemp())", Isolation.REDIRECT)
    process.wait(30)
    assert Path(process.output().strip()).is_relative_to((tmp_path / "scratch0").readlink())


def test_a_removed_folder_hides_all_that_was_beneath(tmp_path) -> None:
    real = tmp_path / "user" / "deep"
    real.mkdir(parents=True)
    (real / "file").touch()
    shadow = MergedView(str(tmp_path / "scratch"))
    assert shadow.lower(str(real / "file"))
    shadow.hide(str(real.parent))
    assert not shadow.lower(str(real / "file"))
    assert MergedView(str(tmp_path / "scratch")).hidden(str(real))


def test_paths_resolve_links_of_both_views(tmp_path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    shadow = MergedView(str(tmp_path / "scratch"))
    assert shadow.resolve(f"{tmp_path}/link/../link/x", follow=True) == f"{tmp_path}/there/x"
    made = shadow.creating(f"{tmp_path}/there/made")
    os.symlink(tmp_path / "there", made)
    assert shadow.resolve(f"{tmp_path}/link/made/x", follow=True) == f"{tmp_path}/there/x"


def test_a_loop_of_links_is_an_error(tmp_path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        MergedView(str(tmp_path / "scratch")).resolve(f"{tmp_path}/a", follow=True)


@pytest.mark.child
@needs_landlock
def test_landlock_lets_write_only_beneath_its_folders(tmp_path, trials) -> None:
    (tmp_path / "free").mkdir()
    code = (
        "import os, sys; from hasten.trials.isolation import landlock\n"
        "print(repr(landlock.restrict([sys.argv[1] + '/free'])))\n"
        "os.chdir(sys.argv[1]); open('free/x', 'w'); os.rename('free/x', 'free/y')\n"
        "open('y', 'w')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False,
        env={"PYTHONPATH": str(trials.src)},
    )  # fmt: skip
    assert done.stdout == "None\n"
    assert "PermissionError" in done.stderr
    assert (tmp_path / "free" / "y").exists()
    assert not (tmp_path / "y").exists()


@pytest.mark.child
@pytest.mark.parametrize(
    "change",
    [
        "os.truncate('log.csv', 0); assert os.stat('log.csv').st_size == 0",
        "os.truncate('log.csv', 100); assert len(open('log.csv').read()) == 100",
        "os.chmod('log.csv', 0o600); assert os.stat('log.csv').st_mode & 0o777 == 0o600",
        "os.utime('log.csv', (1, 1)); assert os.stat('log.csv').st_mtime == 1",
        "os.chown('log.csv', os.getuid(), os.getgid())",
        "os.lchown('log.csv', os.getuid(), os.getgid())",
        "os.mkfifo('pipe'); assert os.path.exists('pipe')",
        "os.mkdir('made'); os.rmdir('made'); os.remove('log.csv'); os.unlink('secret.txt')",
        "os.replace('log.csv', 'moved'); assert os.listdir('.').count('log.csv') == 0",
        "os.link('log.csv', 'twin'); assert open('twin').read() == open('log.csv').read()",
    ],
    ids=lambda change: change.partition("(")[0],
)
def test_each_change_of_a_file_stays_in_the_trial(begin, project, trials, change) -> None:
    before = trials.fingerprint(project)
    process = begin(f"import os; {change}; print('seen')", Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "seen\n"
    assert process.refused == ()
    assert trials.fingerprint(project) == before


@pytest.mark.child
def test_a_trial_finds_a_disk_that_keeps_no_extended_attributes(begin, project) -> None:
    try:
        os.setxattr(project / "log.csv", "user.was", b"0")
    except OSError:
        pytest.skip("this disk keeps no extended attributes")
    code = (
        "import errno, os, shutil\n"
        "for act in (lambda: os.setxattr('log.csv', 'user.a', b'1'),\n"
        "            lambda: os.removexattr('log.csv', 'user.was')):\n"
        "    try:\n"
        "        act()\n"
        "    except OSError as error:\n"
        "        print(error.errno == errno.ENOTSUP, error.filename)\n"
        "shutil.copy2('log.csv', 'twin')"
    )
    process = begin(code, Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.output() == "True log.csv\n" * 2
    assert process.refused == ()
    assert os.listxattr(project / "log.csv") == ["user.was"]


@pytest.mark.child
def test_links_and_compressed_files_are_written_as_any_other(begin, project, trials) -> None:
    before = trials.fingerprint(project)
    code = (
        "import bz2, gzip, lzma, os\n"
        "for module, name in ((bz2, 'a.bz2'), (gzip, 'a.gz'), (lzma, 'a.xz')):\n"
        "    with module.open(name, 'wt') as file: file.write('x')\n"
        "    with module.open(name, 'rt') as file: assert file.read() == 'x', name\n"
        "os.mkdir('made'); os.symlink('made', 'to', target_is_directory=True)\n"
        "assert os.path.isdir('to')\n"
    )
    process = begin(code, Isolation.REDIRECT, cwd=project)
    assert process.wait(30) == Exit(0, None), process.output()
    assert process.refused == ()
    assert trials.fingerprint(project) == before
