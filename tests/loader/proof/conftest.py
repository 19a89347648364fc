"""Scripts that ask for the proof of their own loader."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def proving_python(python_with):
    """What stands for `python`, with all classes of torch looked at, as the first proof does."""
    known = ("hasten.loader.engine", "hasten.loader.proof.script:overriding_methods")
    return python_with(*known, frozen=True)


@pytest.fixture
def said(proving_python, tmp_path):
    """Run a script and return what its loop was told of its loader, pass by pass."""

    def run(text):
        script = tmp_path / "train.py"
        script.write_text(text)
        done = subprocess.run(
            [proving_python, str(script)], cwd=tmp_path, capture_output=True,
            text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        return [line for line in lines if line.startswith(("whole", "PURE", "OWNED", "UNWRITTEN"))]

    return run
