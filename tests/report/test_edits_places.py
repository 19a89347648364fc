"""Edits stand where they are always reached, and name only what is known there."""

import importlib.util
from pathlib import Path

import pytest

from hasten.records import OptimizerTraits, Traits

_spec = importlib.util.spec_from_file_location("desks", Path(__file__).with_name("desks.py"))
desks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(desks)
changed, IMAGES = desks.changed, desks.IMAGES

LAYOUT = "to(memory_format=torch.channels_last)"


@pytest.fixture
def desk(tmp_path, workload):
    return desks.Desk(tmp_path, workload)


def test_optimizers_in_branches_have_a_line_each(desk) -> None:
    source = """
        import torch
        model = torch.nn.Linear(1, 1)
        # the optimizer
        if args.opt == "sgd":
            optimizer = torch.optim.SGD(model.parameters())
        elif args.opt == "adam":
            optimizer = torch.optim.Adam(model.parameters())
        else:
            optimizer = torch.optim.AdamW(model.parameters())
        """
    text = desk.edit(source, torch_compile="default", channels_last=True, traits=IMAGES)
    for made in ("SGD", "Adam", "AdamW"):
        assert (
            f"    model.{LAYOUT}\n    model.compile()\n    optimizer = torch.optim.{made}(" in text
        )
    assert desk.again(torch_compile="default", channels_last=True, traits=IMAGES) == text
    assert desk.diff == ""


@pytest.mark.parametrize(
    ("before", "test", "inside"),
    [
        ("model = None", "model is None", "model = torch.nn.Linear(1, 1)"),
        ("model = build()", "model is not None", "pass"),
        ("self.build()", "small", "pass"),
    ],
)
def test_branches_that_decide_about_the_model_have_a_line_each(desk, before, test, inside) -> None:
    name = "self.model" if before.startswith("self") else "model"
    text = desk.edit(
        f"""
        import torch
        class Job:
            def start(self):
                {before}
                if {test}:
                    {inside}
                    optimizer = torch.optim.SGD({name}.parameters())
                else:
                    optimizer = torch.optim.AdamW({name}.parameters())
        """,
        torch_compile="default",
    )
    for made in ("SGD", "AdamW"):
        line = f"            {name}.compile()\n            optimizer = torch.optim.{made}("
        assert line in text
    assert desk.again(torch_compile="default") == text


def test_a_branch_on_the_line_of_its_if_has_its_line_before_the_if(desk) -> None:
    text = desk.edit(
        """
        import torch
        model = torch.nn.Linear(1, 1)
        if small: optimizer = torch.optim.SGD(model.parameters())
        elif large: optimizer = torch.optim.AdamW(model.parameters())
        """,
        torch_compile="default",
    )
    assert text.count("model.compile()") == 1
    assert "model.compile()\nif small: optimizer" in text


def test_a_call_in_a_branch_of_the_scripts_own_does_not_stand_for_the_line(desk) -> None:
    text = desk.edit(
        """
        import torch
        model = torch.nn.Linear(1, 1)
        if args.compile:
            model.compile()
        optimizer = torch.optim.SGD(model.parameters())
        """,
        torch_compile="default",
    )
    assert "\nmodel.compile()\noptimizer =" in text
    desk.edit(
        """
        import torch
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        model.compile(mode="max-autotune")
        """,
        torch_compile="default",
    )
    assert "+model.compile()" not in changed(desk)


GROUPED = """
    import torch
    def smart_optimizer(model):
        groups = [], [], []
        for v in model.modules():
            for n, p in v.named_parameters(recurse=0):
                groups[0].append(p)
        return torch.optim.Adam(groups[2])
"""
CHOSEN = """
    import torch
    enc, dec = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam([p for m in (enc, dec) for p in m.parameters()])
"""
LISTED = """
    import torch
    optimizers = [torch.optim.Adam(m.parameters()) for m in models]
"""
LOOPED = """
    import torch
    for model in models:
        optimizer = torch.optim.Adam(model.parameters())
"""
POSTPONED = """
    import torch
    make = lambda m: torch.optim.Adam(m.parameters())
"""
ONE_LINE = """
    import torch
    class Module(torch.nn.Module):
        def configure_optimizers(self): return torch.optim.Adam(self.parameters())
"""
ABOVE = """
    import torch
    def make(): return torch.optim.Adam(model.parameters())
    model = torch.nn.Linear(1, 1)
    optimizer = make()
"""
BOUND_BESIDE = """
    import torch
    model = build(); optimizer = torch.optim.Adam(model.parameters())
"""
NO_MODULE = """
    import torch
    class Agent:
        def parameters(self):
            return [torch.zeros(1)]
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters())
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        pytest.param(GROUPED, 7, id="for"),
        pytest.param(CHOSEN, 3, id="comprehension"),
        pytest.param(LISTED, 2, id="list"),
        pytest.param(LOOPED, 3, id="loop"),
        pytest.param(POSTPONED, 2, id="lambda"),
        pytest.param(ONE_LINE, 3, id="method"),
        pytest.param(ABOVE, 2, id="function"),
        pytest.param(BOUND_BESIDE, 2, id="semicolon"),
        pytest.param(NO_MODULE, 6, id="object"),
    ],
)
def test_what_has_no_sure_name_before_its_optimizer_is_left_to_the_user(desk, source, line) -> None:
    desk.edit(source, IMAGES, channels_last=True)
    assert desk.diff == ""
    assert f"write this yourself at train.py:{line}, since no name there is sure" in desk.said()
    assert "model = model.to(memory_format=torch.channels_last)" in desk.said()
    desk.edit(source, torch_compile="default")
    assert desk.diff == ""
    assert f"write this yourself at train.py:{line}, since no name there is sure" in desk.said()


def test_one_model_without_a_sure_name_leaves_the_others_theirs(desk) -> None:
    desk.edit(
        """
        import torch
        maker = torch.nn.Linear(1, 1)
        one = torch.optim.Adam(maker.parameters())
        other = torch.optim.Adam([p for m in judges for p in m.parameters()])
        """,
        IMAGES,
        channels_last=True,
    )
    assert changed(desk) == [f"+maker.{LAYOUT}"]
    assert "write this yourself at train.py:4, since" in desk.said()


AGENT = """
    import torch
    class Agent{bases}:
        def __init__(self):
            self.net = torch.nn.Conv2d(3, 3, 3)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.net.parameters())
    for x in batches:
        {called}(x).mean().backward()
"""


@pytest.mark.parametrize(
    ("bases", "called", "name"),
    [
        ("", "agent.net", "agent.net"),
        ("", "agent", "agent.net"),
        ("(object)", "agent", "agent.net"),
        ("(torch.nn.Module)", "agent.net", "agent.net"),
        ("(torch.nn.Module)", "agent", "agent"),
    ],
)
def test_the_owner_of_a_module_is_one_only_where_it_is_called_as_one(
    desk, bases, called, name
) -> None:
    source = AGENT.format(bases=bases, called=called)
    text = desk.edit(source, IMAGES, channels_last=True)
    assert f"\n{name}.{LAYOUT}\noptimizer" in text
    assert (f"{called}(x.{LAYOUT})" in text) == (called == name)
    assert desk.again(IMAGES, channels_last=True) == text
    text = desk.edit(source, torch_compile="default")
    assert f"\n{name}.compile()\noptimizer" in text


def test_calls_beside_no_backward_pass_get_what_they_got(desk) -> None:
    text = desk.edit(
        """
        import torch
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for epoch in range(3):
            for x in loader:
                model(x).mean().backward()
            for x in held_out:
                print(model(x))
        model(picture)
        """,
        IMAGES,
        channels_last=True,
    )
    assert text.count(LAYOUT) == 2
    assert f"model(x.{LAYOUT}).mean().backward()" in text
    assert "the inputs at train.py:7 and train.py:8 stay as they are" in desk.said()


def test_a_call_in_a_branch_is_changed_and_does_not_stand_for_the_line(desk) -> None:
    text = desk.edit(
        """
        import torch
        if args.threads:
            torch.set_num_threads(args.threads)
        """,
        intra_op_threads=1,
    )
    assert text == (
        "import torch\n\ntorch.set_num_threads(1)\n\n"
        "if args.threads:\n    torch.set_num_threads(1)\n"
    )
    assert desk.again(intra_op_threads=1) == text
    assert desk.diff == ""


def test_a_call_in_a_function_does_not_stand_for_the_line(desk) -> None:
    text = desk.edit(
        "import torch\n\ndef prepare(n):\n    torch.set_num_threads(n)\n", intra_op_threads=1
    )
    assert text.startswith("import torch\n\ntorch.set_num_threads(1)\n\ndef prepare")
    assert text.endswith("    torch.set_num_threads(1)\n")


@pytest.mark.parametrize(
    "lines",
    [
        "def start(i):\n    torch.set_num_threads(1)\nDataLoader(data, worker_init_fn=start)\n",
        "loader = DataLoader(data, worker_init_fn=lambda i: torch.set_num_threads(1))\n",
        "def start(i):\n    torch.set_num_threads(1)\noptions['worker_init_fn'] = start\n",
    ],
)
def test_calls_that_may_start_loader_workers_are_left_to_the_user(desk, lines) -> None:
    desk.edit(f"import torch\n{lines}", intra_op_threads=4)
    assert desk.diff == ""
    assert "since a call may be there for the workers of a `worker_init_fn`" in desk.said()


@pytest.mark.parametrize(
    "lines",
    [
        "def main():\n    import torch\n    train(torch)\n",
        "if __name__ == '__main__':\n    import torch\n",
        "def main():\n    import torch as th\n",
        "try:\n    import torch\nexcept ImportError:\n    raise SystemExit from None\n",
        "try:\n    import torch\nexcept ImportError:\n    torch = None\n",
    ],
    ids=["function", "main", "renamed", "try", "none"],
)
def test_an_import_that_lines_at_the_top_cannot_count_on_gets_one_that_they_can(
    desk, lines
) -> None:
    text = desk.edit(
        f"import argparse\n\n{lines}",
        intra_op_threads=1, flush_denormals=True, fp32_precision="tf32",
    )  # fmt: skip
    head = text.split(lines)[0].splitlines()
    assert head == [
        "import argparse", "import torch", "", "torch.set_flush_denormal(True)",
        'torch.set_float32_matmul_precision("high")', "torch.set_num_threads(1)", "",
    ]  # fmt: skip


def test_a_function_with_an_import_of_its_own_may_use_the_one_at_the_top(desk) -> None:
    text = desk.edit(
        """
        def main(model):
            import torch as th
            optimizer = th.optim.SGD(model.parameters())
            for images in loader:
                model(images).mean().backward()
        """,
        IMAGES,
        channels_last=True, autocast="bfloat16", torch_compile="default",
    )  # fmt: skip
    assert text.startswith(
        "import torch\nimport torch._inductor.config\n\n"
        "torch._inductor.config.fallback_random = True\n\ndef main"
    )
    assert f"    model.{LAYOUT}\n    model.compile()\n    optimizer = th.optim" in text
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16' in text


def test_lines_come_after_the_import_that_binds_their_name(desk) -> None:
    text = desk.edit(
        """
        from torch import nn
        seed = 1
        import torch as th
        """,
        intra_op_threads=1,
    )
    assert text.splitlines()[-1] == "th.set_num_threads(1)"


SETTINGS = 'import os\n\nos.environ["OMP_NUM_THREADS"] = "1"\n'


@pytest.mark.parametrize(
    "imports",
    [
        "# torch\nfrom torch import nn\n",
        "import torch.nn as nn\n",
        "import csv\n\nfrom torch import nn\n",
    ],
)
def test_an_added_import_of_torch_stays_behind_what_is_set_for_it(desk, imports) -> None:
    text = desk.edit(f"{SETTINGS}{imports}net = nn.Linear(1, 1)\n", intra_op_threads=2)
    kept, own = text.split("import torch\n")[:2]
    assert kept.startswith(SETTINGS)
    assert own.startswith(("from torch import nn", "import torch.nn as nn"))
    assert "\n\ntorch.set_num_threads(2)\n\nnet" in text
    assert desk.again(intra_op_threads=2) == text


@pytest.mark.parametrize(
    "line", ['os.environ["OMP_NUM_THREADS"] = "1"', 'os.environ.setdefault("OMP_NUM_THREADS", "1")']
)
def test_torch_that_a_module_of_the_users_brings_comes_after_that_module(desk, line) -> None:
    (desk.folder / "model.py").write_text("from torch import nn\n")
    head = f"import os\n{line}\nfrom model import nn\n"
    text = desk.edit(f"{head}\nnet = nn\n", intra_op_threads=2)
    assert text == f"{head}import torch\n\ntorch.set_num_threads(2)\n\nnet = nn\n"


@pytest.mark.parametrize(
    ("imports", "optim", "after"),
    [
        ("import torch\n", "torch.optim", "import torch\nimport torch._inductor.config\n"),
        ("import torch as th\n", "th.optim", "import torch as th\nimport torch._inductor.config\n"),
        (
            "from torch import optim\n", "optim",
            "import torch._inductor.config\nfrom torch import optim\n",
        ),
    ],
)  # fmt: skip
def test_the_compilers_settings_are_imported_before_they_are_set(
    desk, imports, optim, after
) -> None:
    text = desk.edit(
        f"{imports}model = make()\noptimizer = {optim}.SGD(model.parameters())\n",
        torch_compile="default",
    )
    assert text.startswith(f"{after}\ntorch._inductor.config.fallback_random = True\n")
    assert desk.again(torch_compile="default") == text
    assert desk.diff == ""


def test_momentum_and_weights_that_learn_later_are_told(desk) -> None:
    told = "leave fused=True out of the SGD at train.py:2 if some weights get their first gradient"
    for call in ("SGD(ps, 0.1, momentum=args.momentum)", "SGD(ps, 0.1, 0.9)"):
        desk.edit(f"import torch\no = torch.optim.{call}\n", fused_optimizer=True)
        assert "fused=True)" in changed(desk)[1]
        assert told in desk.said()
    for call in ("SGD(ps, 0.1)", "SGD(ps, 0.1, momentum=0.0)", "AdamW(ps, 0.1)"):
        desk.edit(f"import torch\no = torch.optim.{call}\n", fused_optimizer=True)
        assert "leave fused=True" not in desk.said()
    desk.edit(
        "import torch\noptions = {'momentum': 0.9}\no = torch.optim.SGD(ps, **options)\n",
        fused_optimizer=True,
    )
    assert "leave fused=True out of the SGD at train.py:3" in desk.said()
    desk.edit("import torch\no = torch.optim.SGD(ps, 1, 0.9)\n", foreach_optimizer=True)
    assert "leave fused=True" not in desk.said()


def test_sparse_gradients_leave_the_fused_form_to_the_user(desk) -> None:
    source = """
        import torch
        table = torch.nn.Embedding(9, 2, sparse=True)
        one = torch.optim.SGD(net.parameters())
        two = torch.optim.SGD(table.parameters())
        """
    desk.edit(source, fused_optimizer=True)
    assert desk.diff == ""
    assert "write this yourself at train.py:3 and train.py:4, since the fused form" in desk.said()
    assert "asked for at train.py:2" in desk.said()
    desk.edit(source, foreach_optimizer=True)
    assert desk.diff
    desk.edit(source.replace("sparse=True", "sparse=False"), fused_optimizer=True)
    assert desk.diff


@pytest.mark.parametrize("lever", ["fused_optimizer", "foreach_optimizer"])
def test_only_optimizers_of_the_class_that_was_tuned_are_changed(desk, lever) -> None:
    source = """
        import torch
        if args.sgd:
            optimizer = torch.optim.SGD(ps)
        else:
            optimizer = torch.optim.AdamW(ps)
        """
    desk.edit(source, Traits(optimizer=OptimizerTraits(name="AdamW")), **{lever: True})
    argument = lever.partition("_")[0]
    assert changed(desk)[1:] == [f"+    optimizer = torch.optim.AdamW(ps, {argument}=True)"]
    assert "the optimizer at train.py:3 stays as it is: the tuning saw AdamW train" in desk.said()
    desk.edit(source, Traits(optimizer=OptimizerTraits(name="Adagrad")), **{lever: True})
    assert desk.diff == ""
    assert "write this yourself, since no constructor" in desk.said()
