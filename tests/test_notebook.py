"""`%%hasten profile` in IPython's shell, as a notebook has it."""

import gc
import io
import json
import os
import signal
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import hasten.errors
from hasten import notebook
from hasten.notebook import NotebookReport, as_notebook

SRC = str(Path(hasten.errors.__file__).parents[1])
TRAINING = (
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "for step in range(100000):\n"
    "    optimizer.zero_grad()\n"
    "    loss = model(torch.randn(8, 4)).pow(2).mean()\n"
    "    loss.backward()\n"
    "    optimizer.step()\n"
)


class Session:
    """A notebook session: runs cells one after another."""

    def __init__(self, shell):
        self.shell = shell

    def run(self, *cells):
        """Run cells; return the last result, and what was written."""
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            for cell in cells:
                result = self.shell.run_cell(cell, store_history=True)
        return result, out.getvalue()


@pytest.fixture
def session(tmp_path, monkeypatch):
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.chdir(tmp_path)
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    hooks = sys.displayhook, sys.excepthook, sys.path[:]
    shell = InteractiveShell(config=config)
    yield Session(shell)
    shell.restore_sys_module_state()
    shell._atexit_once()
    sys.displayhook, sys.excepthook, sys.path[:] = hooks
    gc.collect()


@pytest.fixture
def profiled(monkeypatch):
    """Take what would be profiled."""
    seen = []

    def profile(cells, options, *, cwd):
        seen.append((list(cells), options, cwd))
        return NotebookReport("the text", "<p>the page</p>")

    monkeypatch.setattr(notebook, "profile", profile)
    return seen


def test_the_cells_that_ran_come_before_the_one_that_is_profiled(session, profiled, tmp_path):
    session.run("%load_ext hasten\nx = 1", "!true", "  ", "y = x + 1")
    result, _ = session.run("%%hasten profile --steps 20\nfor i in y:\n    pass\n")
    assert result.success
    ((cells, options, cwd),) = profiled
    assert cells == ["x = 1", "!true", "y = x + 1", "for i in y:\n    pass\n"]
    assert options == ["--steps", "20"]
    assert cwd == str(tmp_path)
    assert "i" not in session.shell.user_ns


def test_cells_that_failed_are_left_out(session, profiled):
    session.run("1 / 0", "x = 1", "%load_ext hasten", "undefined", "y = = 2", "z = 3")
    session.run("%%hasten profile\npass")
    assert profiled[0][0] == ["x = 1", "z = 3", "pass\n"]


def test_the_same_cell_and_earlier_profiles_are_not_run_again(session, profiled):
    session.run("%load_ext hasten", "train = 1", "other = 2", "%%hasten profile\nother = 2")
    session.run("%%hasten profile\ntrain = 1")
    assert profiled[0][0] == ["train = 1", "other = 2\n"]
    assert profiled[1][0] == ["other = 2", "train = 1\n"]


@pytest.mark.parametrize("chosen", ["--cells '2 4'", "--cells='2 4'"])
def test_cells_can_be_chosen(session, profiled, chosen):
    session.run("%load_ext hasten", "a = 2", "b = 3", "c = 4", f"%%hasten profile {chosen}\nd")
    assert profiled[0][:2] == (["a = 2", "c = 4", "d\n"], [])


def test_the_report_is_a_page_in_a_notebook_and_text_elsewhere(session, profiled):
    session.run("%load_ext hasten")
    result, _ = session.run("%%hasten profile\npass")
    data, _ = session.shell.display_formatter.format(result.result)
    assert data["text/plain"] == "the text"
    assert 'srcdoc="&lt;p&gt;the page&lt;/p&gt;"' in data["text/html"]
    data, _ = session.shell.display_formatter.format(NotebookReport("the text"))
    assert "text/html" not in data


@pytest.mark.parametrize("line", ["", "tune", "run --steps 3"])
def test_another_verb_is_refused_with_the_remedy(session, profiled, line):
    session.run("%load_ext hasten")
    result, told = session.run(f"%%hasten {line}\npass")
    assert not result.success
    assert "Write %%hasten profile" in told
    assert "Traceback" not in told
    assert not profiled


def test_a_quotation_that_does_not_end_is_a_sentence(session, profiled):
    session.run("%load_ext hasten")
    result, told = session.run("%%hasten profile --cells '1-3\npass")
    assert not result.success
    assert "%%hasten cannot read its line: No closing quotation." in told
    assert "Traceback" not in told
    assert not profiled


def test_a_full_disk_is_a_sentence(session, monkeypatch):
    def refuse(command, **details):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(notebook, "_run", refuse)
    session.run("%load_ext hasten")
    result, told = session.run("%%hasten profile\npass")
    assert not result.success
    assert "The cell was not profiled: no space left on device." in told
    assert "Traceback" not in told


def test_loading_twice_and_unloading_leave_one_listener_and_none(session):
    before = len(session.shell.events.callbacks["post_run_cell"])
    session.run("%load_ext hasten", "%reload_ext hasten", "%load_ext hasten")
    assert len(session.shell.events.callbacks["post_run_cell"]) == before + 1
    session.run("%unload_ext hasten")
    assert len(session.shell.events.callbacks["post_run_cell"]) == before


@pytest.mark.slow
@pytest.mark.child
def test_a_cell_is_profiled_in_a_fresh_process(session, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", SRC)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does
    Path("made.py").write_text("import torch\nmodel = torch.nn.Linear(4, 2)\n")
    session.run("%load_ext hasten", "import os", "1 / 0", "!echo shell")
    result, told = session.run(
        f"%%hasten profile --steps 30\nfrom made import model, torch\n{TRAINING}"
    )
    assert result.success, told
    assert "Where time goes" in result.result.text
    assert "<html" in result.result.page
    assert "profile: starting the script" in told
    assert "\x1b" not in told + result.result.text
    assert "model" not in session.shell.user_ns


def test_a_cell_that_cannot_be_profiled_fails_in_a_sentence(session, monkeypatch):
    monkeypatch.setattr(notebook, "_run", lambda command, **details: 3)
    session.run("%load_ext hasten")
    result, told = session.run("%%hasten profile\nprint('no training')")
    assert not result.success
    assert "The cell was not profiled: hasten ended with exit code 3." in told
    assert "Traceback" not in told


@pytest.mark.child
def test_an_interrupted_cell_ends_its_process(tmp_path):
    (tmp_path / "waits.py").write_text(
        "import sys, time\n"
        "try:\n    print('ready', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    open('ended', 'w').close()\n"
    )

    class Listens(io.StringIO):
        def write(self, line):
            if "ready" in line:
                signal.raise_signal(signal.SIGINT)
            return super().write(line)

    assert threading.current_thread() is threading.main_thread()
    with redirect_stdout(Listens()), pytest.raises(KeyboardInterrupt):
        notebook._run([sys.executable, "waits.py"], cwd=tmp_path, env=dict(os.environ))
    assert (tmp_path / "ended").exists()


def test_a_notebook_of_cells_is_one_that_can_be_run(tmp_path):
    from hasten.trials.notebook import code_cells

    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(as_notebook(["a = 1\nb", "c"])))
    assert code_cells(path) == ["a = 1\nb", "c"]
