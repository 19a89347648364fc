"""The script's own code is read for names; libraries and attributes of that name are not."""

import gc
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import hasten
from hasten.root_calls.own_code import mention


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", ""),
        ("def late(p):\n    return p.grad.data_ptr_of_ours()", "has data_ptr_of_ours in late"),
        ("def late():\n    return [lambda p: p.data_ptr_of_ours]", "has data_ptr_of_ours in late"),
        ("class Own:\n    def data_ptr_of_ours(self):\n        pass", "has data_ptr_of_ours in "),
    ],
)  # fmt: skip
def test_says_where_a_name_stands(source, message, tmp_path) -> None:
    path = tmp_path / f"{tmp_path.name}.py"
    path.write_text(source)
    spec = spec_from_file_location("script", path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    gc.collect()  # functions of the case before
    found = mention(("data_ptr_of_" + "ours",))
    assert found.startswith(f"{path.name} {message}" if message else "")
    assert bool(found) is bool(message)


def test_an_installed_package_that_was_started_is_the_scripts(tmp_path) -> None:
    package = tmp_path / "site-packages" / "trained"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "late.py").write_text("def late(p):\n    return p.grad.data_ptr_of_ours()\n")
    (package / "train.py").write_text(
        "from hasten.root_calls.own_code import mention\nfrom trained import late\n"
        "print(mention(('data_ptr_of_ours',)))\n"
    )
    paths = [str(package.parent), str(Path(hasten.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", "trained.train"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.stdout == "late.py has data_ptr_of_ours in late\n"
