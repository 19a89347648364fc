"""Scripts and files as they should not be, through the real command line."""

import os
import shutil

import pytest

PROFILE = ("profile", "--progress", "plain", "--startup-timeout", "20s")
HASTY = ("profile", "--progress", "plain", "--startup-timeout", "8s")
PLAN = """schema = 1
[machine]
cores = {cores}
[command]
entry = "script"
argv = ["{script}"]
[plan]
{plan}
[evidence]
"""
# Floods its output, leaves a daemon, then wants more memory than there is.
UNRULY = """
if step == 2:
    for _ in range(200):
        os.write(1, b"x" * (1 << 20))
if step == 3 and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
if step == 8:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    bytearray(64 << 30)
"""


def refused(project, *words, **options):
    """Run a command that must fail as it should, and return what was said.

    One problem and one remedy, no traceback of ours, nothing left behind.
    """
    before = project.tree()
    ended = project.hasten(*words, **options)
    assert len(ended.said) == 2, ended.err
    assert str(project.source) not in ended.err.replace("trials/site", "")
    assert ended.err.count("Traceback") <= 1
    assert project.tree() == before
    assert project.nothing_left()
    return ended


@pytest.mark.parametrize(
    ("name", "message"),
    [("nope.py", "Cannot find the script nope.py."), (".", ". is a folder.")],
)
def test_a_script_that_is_not_there_is_wrong_usage(project, name, message) -> None:
    ended = refused(project, *PROFILE, name)
    assert (ended.code, ended.said[0]) == (2, message)


def test_a_syntax_error_is_shown_before_anything_is_started(project) -> None:
    project.write("train.py", "def broken(:\n")
    ended = refused(project, "tune", "--progress", "plain", "train.py")
    assert ended.code == 3
    assert "SyntaxError: invalid syntax" in ended.err


@pytest.mark.child
def test_a_script_that_ends_without_training_is_told_so(project) -> None:
    project.write("train.py", "import torch\ntorch.ones(3)\n")
    ended = refused(project, *PROFILE, "train.py")
    assert ended.code == 3
    assert "ended without an optimizer step or a backward pass" in ended.said[0]


@pytest.mark.child
def test_a_script_that_never_trains_is_given_up_after_the_patience(project) -> None:
    project.write("train.py", "import time\nprint('serving')\ntime.sleep(1000)\n")
    ended = refused(project, "profile", "--startup-timeout", "3s", "train.py")
    assert ended.code == 3
    assert "no optimizer step or backward pass in 3 s" in ended.said[0]
    assert "--startup-timeout" in ended.said[1]


@pytest.mark.child
def test_a_script_of_three_steps_is_told_how_many_are_needed(project) -> None:
    project.script()
    ended = refused(project, *PROFILE, "train.py", env={"STEPS": "4"})
    assert ended.code == 3
    assert ended.said == [
        "The script ended after 3 training steps, and a measurement needs at least 14.",
        "Give the script more work, for example more epochs or more data.",
    ]


@pytest.mark.child
@pytest.mark.parametrize(
    ("at", "words", "message"),
    [
        ("if step == 8: raise ValueError('seven')", "ValueError: seven",
         "The script failed (exit code 1) after 7 training steps."),
        pytest.param(
            "import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'",
            "The script failed (exit code 1) before its first training step.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            UNRULY, "MemoryError", "The script failed (exit code 1) after 7 training steps.",
            marks=pytest.mark.slow,
        ),
        ("if step == 0: sys.exit(len(sys.stdin.read()) or 5)", "",
         "The script failed (exit code 5) before its first training step."),
    ],
    ids=["crash", "import", "unruly", "stdin"],
)  # fmt: skip
def test_a_script_that_fails_says_it_in_its_own_words(project, at, words, message) -> None:
    project.script(at)
    ended = refused(project, *PROFILE, "train.py", stdin_text="typed ahead")
    assert (ended.code, ended.said[0]) == (3, message)
    assert words in ended.err


@pytest.mark.child
def test_input_is_refused_and_not_waited_for(project) -> None:
    project.script("if step == 0: input('How many epochs? ')")
    before = project.tree()
    ended = project.hasten(*PROFILE, "train.py", stdin_text="3\n")
    assert ended.code == 3
    assert "The script asks for input" in ended.said[0]
    assert "How many epochs?" in ended.err
    assert project.tree() == before
    assert project.nothing_left()


@pytest.mark.child
def test_a_script_that_the_kernel_ends_is_told_that_memory_may_be_why(project) -> None:
    project.script("if step == 7: os.kill(os.getpid(), signal.SIGKILL)")
    ended = refused(project, *PROFILE, "train.py")
    assert ended.code == 3
    assert "SIGKILL (out of memory?)" in ended.said[0]


@pytest.mark.child
def test_a_script_that_hangs_is_not_waited_for_for_ever(project) -> None:
    project.script("if step == 7: time.sleep(1000)")
    ended = refused(project, *HASTY, "train.py")
    assert ended.code == 3
    assert "came to a halt after at least" in ended.said[0]
    assert "train.py:" in ended.said[0]
    assert "time.sleep(1000)" in ended.said[0]
    waited_s = int(ended.said[0].split(" s.")[0].split()[-1])
    assert 8 <= waited_s <= 20  # 20 times as long as the steps took comes on top


@pytest.mark.child
def test_a_command_that_refuses_the_environment_is_told_which_option_does_it(project) -> None:
    project.script()
    ended = refused(project, *HASTY, "--", "python", "-I", "train.py")
    assert ended.code == 3
    assert "`python -I`" in ended.said[0]


@pytest.mark.slow
@pytest.mark.child
def test_forty_quick_steps_and_a_temporary_folder_with_a_long_name_are_no_obstacle(
    project, tmp_path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    project.script()
    ended = project.hasten(*PROFILE, "train.py", env={"STEPS": "40", "TMPDIR": str(long)})
    assert ended.code == 0, ended.err
    assert project.nothing_left()
    assert not list(long.iterdir())


@pytest.mark.slow
@pytest.mark.child
def test_a_folder_without_permission_to_write_is_measured_and_said_before_a_tuning(project) -> None:
    lead = _as_bound() if os.geteuid() == 0 else []
    project.script()
    project.root.chmod(0o555)
    tuned = project.hasten(
        argv=[*lead, *project.command("tune", "--progress", "plain", "train.py")]
    )
    assert tuned.code == 2
    assert "no permission" in tuned.said[0]
    argv = [*lead, *project.command(*PROFILE, "train.py")]
    assert project.hasten(argv=argv, env={"STEPS": "40"}).code == 0
    project.root.chmod(0o755)


def _as_bound() -> list[str]:
    """Return how to start what permissions bind: root without the right to pass them over."""
    if not shutil.which("setpriv"):
        pytest.skip("permissions do not bind root, and there is no setpriv to give that up")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.mark.child
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PLAN.format(cores=999, script="train.py", plan="fused_optimizer = true"), "999 cores"),
        (PLAN.format(cores=1, script="x.py", plan="fused_optimizer = true"), "tuned for x.py"),
        (PLAN.format(cores=1, script="train.py", plan="warp_drive = true"), "warp_drive"),
        ("[plan\n", "hasten.toml"),
        ("schema = 99\n[plan]\n", "schema 99"),
        ("[tool.black]\nline-length = 100\n", "hasten.toml"),
    ],
    ids=["other cores", "other script", "unknown lever", "broken", "other schema", "not ours"],
)
def test_a_plan_that_does_not_fit_is_refused_before_the_script_starts(
    project, text, message
) -> None:
    project.script("print('started')")
    project.write("hasten.toml", text)
    ended = project.hasten("run", "train.py")
    assert ended.code == 2
    assert message in " ".join(ended.said)
    assert "Traceback" not in ended.err
    assert "started" not in ended.out
    assert project.nothing_left()
