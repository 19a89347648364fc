"""The plan as a diff of the user's source: what is written, and what is left to the user."""

import importlib.util
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

import hasten.errors
from hasten.errors import PlanError, UsageError
from hasten.records import Entry, ModelTraits, Plan, Traits
from hasten.report.edits import write_edits
from hasten.testing import fed

_spec = importlib.util.spec_from_file_location("desks", Path(__file__).with_name("desks.py"))
desks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(desks)
changed, IMAGES, QUIET = desks.changed, desks.IMAGES, desks.QUIET

ROOT = Path(hasten.errors.__file__).parents[2]
HEAD = """
    import torch
    from torch import nn
"""
LOOP = """
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def desk(tmp_path, workload):
    return desks.Desk(tmp_path, workload)


def test_an_empty_plan_has_nothing_to_write(desk) -> None:
    desk.edit("import torch\n")
    assert desk.diff == ""
    assert "The plan is empty" in desk.said()


def test_a_setting_of_the_process_comes_after_the_imports_and_keeps_comments(desk) -> None:
    text = desk.edit(
        '''
        """Train."""
        # a word before
        import os  # for paths

        import torch  # the library
        from torch import nn

        # the model
        model = nn.Linear(1, 1)
        ''',
        intra_op_threads=3,
        flush_denormals=True,
    )
    assert text == dedent(
        '''
        """Train."""
        # a word before
        import os  # for paths

        import torch  # the library
        from torch import nn

        torch.set_flush_denormal(True)
        torch.set_num_threads(3)

        # the model
        model = nn.Linear(1, 1)
        '''
    ).lstrip("\n")


def test_what_must_stand_before_torch_stays_before_it(desk) -> None:
    text = desk.edit(
        """
        import os
        os.environ["OMP_NUM_THREADS"] = "4"
        import torch as th
        from torch import nn
        net = nn.Linear(1, 1)
        """,
        intra_op_threads=2,
    )
    assert text.splitlines()[2:] == [
        "import torch as th", "from torch import nn", "", "th.set_num_threads(2)", "",
        "net = nn.Linear(1, 1)",
    ]  # fmt: skip


def test_a_script_that_leaves_torch_to_others_gets_its_import(desk) -> None:
    (desk.folder / "model.py").write_text("import torch\n")
    text = desk.edit("import argparse\nimport model\n\nmodel\n", intra_op_threads=2)
    assert text == (
        "import argparse\nimport model\nimport torch\n\ntorch.set_num_threads(2)\n\nmodel\n"
    )


def test_a_call_that_is_there_is_changed_and_not_doubled(desk) -> None:
    desk.edit("import torch\ntorch.set_num_threads( 8 )  # all of them\n", intra_op_threads=2)
    assert changed(desk) == [
        "-torch.set_num_threads( 8 )  # all of them", "+torch.set_num_threads( 2 )  # all of them",
    ]  # fmt: skip


def test_a_number_in_another_file_of_the_project_is_changed_there(desk) -> None:
    (desk.folder / "parts").mkdir()
    (desk.folder / "parts" / "__init__.py").write_text("from .setup import prepare\n")
    (desk.folder / "parts" / "setup.py").write_text(
        "import torch\n\n\ndef prepare():\n    torch.set_num_threads(8)\n"
    )
    desk.edit("import torch\nfrom parts import prepare\n\nprepare()\n", intra_op_threads=2)
    assert "+++ b/parts/setup.py" in desk.diff
    assert "+    torch.set_num_threads(2)" in changed(desk)


def test_files_outside_the_project_are_nobodys_to_edit(desk) -> None:
    lib = desk.folder / "venv" / "site-packages"
    lib.mkdir(parents=True)
    (lib / "helper.py").write_text("import torch\ntorch.set_num_threads(8)\n")
    desk.edit("import torch\nimport helper\n", intra_op_threads=2)
    assert desk.diff.count("+++") == 1


def test_precision_and_malloc_are_one_line_each(desk) -> None:
    text = desk.edit(
        "import torch\n\ntrain()\n",
        fp32_precision="tf32", malloc_retention=True,
    )  # fmt: skip
    assert text.splitlines()[:5] == [
        "import ctypes",
        "import torch",
        "",
        'torch.set_float32_matmul_precision("high")',
        "ctypes.CDLL(None).mallopt(-3, 1 << 30) or ctypes.CDLL(None).mallopt(-3, 32 << 20)"
        "  # M_MMAP_THRESHOLD: freed memory stays here",
    ]


def test_a_precision_of_the_scripts_own_stays(desk) -> None:
    desk.edit(
        'import torch\ntorch.set_float32_matmul_precision("highest")\n', fp32_precision="tf32"
    )
    assert desk.diff == ""
    assert "keep `hasten run`. The script sets a precision itself at train.py:2." in desk.said()


@pytest.mark.parametrize(
    "word",
    ["'highest'", '"high" if args.fast else "highest"', "args.precision", "precision='high'"],
)
def test_a_precision_of_another_word_or_of_no_sure_one_stays(desk, word) -> None:
    desk.edit(f"import torch\ntorch.set_float32_matmul_precision({word})\n", fp32_precision="bf16")
    assert desk.diff == ""
    assert "The script sets a precision itself at train.py:2." in desk.said()


def test_the_precision_of_onednn_is_written_where_the_tuned_torch_has_it(desk) -> None:
    source = "import torch as th\n\nth.set_float32_matmul_precision('medium')\n"
    newer = [
        f'+th.backends.mkldnn.{kind}.fp32_precision = "bf16"  # since torch 2.9'
        for kind in ("conv", "rnn")
    ]
    text = desk.edit(source, Traits(torch="2.10.0+cpu"), fp32_precision="bf16")
    assert newer == [line for line in changed(desk) if "mkldnn" in line]
    assert desk.again(Traits(torch="2.10.0+cpu"), fp32_precision="bf16") == text
    for version in ("2.8.0", "2.8.0a0+git1", ""):
        desk.edit("import torch\n", Traits(torch=version), fp32_precision="bf16")
        assert changed(desk) == ["+", '+torch.set_float32_matmul_precision("medium")']


@pytest.mark.parametrize(
    ("imports", "before", "after"),
    [
        ("import torch", "torch.optim.Adam(ps, 1)", "torch.optim.Adam(ps, 1, fused=True)"),
        ("from torch import optim", "optim.SGD(ps, 0.1)", "optim.SGD(ps, 0.1, fused=True)"),
        (
            "from torch.optim import AdamW as Best",
            "Best(ps, fused=False, lr=1)",
            "Best(ps, fused=True, lr=1)",
        ),
        (
            "import torch.optim as o",
            "o.Adam((p for p in ps), foreach=True)",
            "o.Adam((p for p in ps), foreach=None, fused=True)",
        ),
        ("import torch", "torch.optim.SGD(ps, lr=1,)", "torch.optim.SGD(ps, lr=1, fused=True,)"),
        (
            "from torch.optim import SGD",
            "SGD(p for p in ps)",
            "SGD((p for p in ps), fused=True)",
        ),
    ],
)  # fmt: skip
def test_every_form_of_a_constructor_gets_the_argument_once(desk, imports, before, after) -> None:
    text = desk.edit(f"{imports}\nopt = {before}  # mine\n", fused_optimizer=True)
    assert text == f"{imports}\nopt = {after}  # mine\n"
    assert desk.again(fused_optimizer=True) == text
    assert desk.diff == ""


def test_an_argument_on_a_line_of_its_own_gets_a_line_of_its_own(desk) -> None:
    text = desk.edit(
        """
        import torch
        opt = torch.optim.AdamW(
            model.parameters(),  # all
            lr=1e-3,
        )
        """,
        fused_optimizer=True,
    )
    assert text.splitlines()[1:] == [
        "opt = torch.optim.AdamW(", "    model.parameters(),  # all", "    lr=1e-3,",
        "    fused=True,", ")",
    ]  # fmt: skip


def test_an_optimizer_without_a_fused_form_or_with_its_own_name_is_left(desk) -> None:
    desk.edit(
        """
        import torch
        from mine import Adam
        one = torch.optim.RMSprop(ps)
        two = Adam(ps)
        """,
        fused_optimizer=True,
    )
    assert desk.diff == ""
    assert "write this yourself, since no constructor" in desk.said()
    assert "fused=True" in desk.said()
    desk.again(foreach_optimizer=True)
    assert changed(desk)[1] == "+one = torch.optim.RMSprop(ps, foreach=True)"


def test_arguments_from_a_dict_that_is_written_down_are_changed_there(desk) -> None:
    text = desk.edit(
        """
        import torch
        options = {"lr": 1e-3, "foreach": True}
        opt = torch.optim.Adam(ps, **options)
        """,
        fused_optimizer=True,
    )
    assert 'options = {"lr": 1e-3, "foreach": None, "fused": True}' in text


@pytest.mark.parametrize(
    "more", ["save(options)", "options['lr'] = 2", "opt = other(ps, **options)"]
)
def test_a_dict_that_others_use_is_left_and_the_place_is_named(desk, more) -> None:
    desk.edit(
        f"import torch\noptions = {{'lr': 1}}\n{more}\nopt = torch.optim.Adam(ps, **options)\n",
        fused_optimizer=True,
    )
    assert desk.diff == ""
    assert "write this yourself at train.py:4, since its arguments come from elsewhere" in (
        desk.said()
    )


def test_workers_go_to_the_loader_that_feeds_the_loop(desk) -> None:
    text = desk.edit(
        """
        from torch.utils.data import DataLoader as DL
        train = DL(data, 8, True, num_workers=0)
        test = DL(data, batch_size=8)
        for epoch in range(3):
            for x in train:
                model(x).mean().backward()
            for x in test:
                model(x)
        """,
        QUIET,
        loader_workers=2,
    )
    assert changed(desk) == [
        "-train = DL(data, 8, True, num_workers=0)", "+train = DL(data, 8, True, num_workers=2)",
    ]  # fmt: skip
    assert "the loader at train.py:3 does not feed the training loop" in desk.said()
    assert "persistent_workers=True would" in desk.said()
    assert desk.again(QUIET, loader_workers=2) == text


def test_workers_that_the_script_would_set_up_are_not_written(desk) -> None:
    desk.edit(
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(data, batch_size=8, worker_init_fn=start)
        for x in loader:
            model(x).mean().backward()
        """,
        QUIET,
        loader_workers=2,
    )
    assert changed(desk) == []
    assert "would run the worker_init_fn of the loader at train.py:2" in desk.said()


def test_an_only_loader_that_goes_into_other_loops_alone_is_left(desk) -> None:
    desk.edit(
        """
        import functools
        from torch.utils.data import DataLoader
        make = functools.partial(DataLoader, batch_size=64)
        train, test = make(data, shuffle=True), DataLoader(held_out)
        for x in train:
            model(x).mean().backward()
        for x in test:
            model(x)
        """,
        QUIET,
        loader_workers=2,
    )
    assert desk.diff == ""


COUNTED = "for step in range(9):\n    model(draw()).mean().backward()\n"


@pytest.mark.parametrize(
    "lines",
    [
        f"{COUNTED}    print(sum(model(x) for x in test))",
        f"{COUNTED}first = next(iter(test))",
        "for x in batches():\n    model(x).mean().backward()\nevaluate(test)",
    ],
)
def test_an_only_loader_that_is_not_seen_to_feed_the_loop_is_left(desk, lines) -> None:
    source = f"from torch.utils.data import DataLoader\ntest = DataLoader(held_out)\n{lines}\n"
    desk.edit(source, QUIET, loader_workers=2)
    assert desk.diff == ""
    assert "write this yourself at train.py:2, since which of these loaders" in desk.said()


def test_an_only_loader_whose_iterator_a_counting_loop_reads_feeds_it(desk) -> None:
    text = desk.edit(
        """
        from torch.utils.data import DataLoader
        batches = iter(DataLoader(data))
        while step < 9:
            model(next(batches)).mean().backward()
        """,
        QUIET,
        loader_workers=2,
    )
    assert "batches = iter(DataLoader(data, num_workers=2))" in text


def test_loaders_that_begin_together_are_left(desk) -> None:
    desk.edit(
        """
        from torch.utils.data import DataLoader
        labeled, unlabeled = DataLoader(some, 8, True), DataLoader(more, 8, True)
        for x, u in zip(labeled, unlabeled):
            (model(x).mean() + model(u).std()).backward()
        """,
        QUIET,
        loader_workers=2,
    )
    assert desk.diff == ""
    assert "Two loaders begin together at train.py:3" in desk.said()


def test_loaders_whose_iterators_take_turns_are_left(desk) -> None:
    desk.edit(
        """
        from torch.utils.data import DataLoader
        labeled, unlabeled = DataLoader(some, 8, True), DataLoader(more, 8, True)
        one, other = iter(labeled), iter(unlabeled)
        for step in range(9):
            (model(next(one)).mean() + model(next(other)).std()).backward()
        """,
        QUIET,
        loader_workers=2,
    )
    assert desk.diff == ""
    assert "Two loaders begin together at train.py:3" in desk.said()


def test_a_loader_whose_items_are_looked_at_beside_the_loop_is_left(desk) -> None:
    text = desk.edit(
        """
        from torch.utils.data import DataLoader
        train, val = DataLoader(data, shuffle=True), DataLoader(held_out)
        for x in train:
            model(x).mean().backward()
            score(model, next(iter(val)))
        """,
        QUIET,
        loader_workers=2,
    )
    assert "DataLoader(data, shuffle=True, num_workers=2), DataLoader(held_out)" in text


TEACHER = """
    student, teacher = student.to(device), teacher.to(device)
    for p in teacher.parameters():
        p.requires_grad = False
    groups = grouped(student)
    optimizer = torch.optim.AdamW(groups)
    student(x).mean().backward()
"""
DECAYED = """
    decay, rest = [], []
    for name, p in model.named_parameters():
        (decay if p.ndim > 1 else rest).append(p)
    groups = [{"params": decay}, {"params": rest}]
    optimizer = torch.optim.AdamW(groups)
    model(x).mean().backward()
"""


def test_a_module_whose_weights_no_optimizer_gets_is_not_taken_for_the_trained_one(desk) -> None:
    desk.edit(f"import torch\ndef main(student, teacher):{TEACHER}", torch_compile="default")
    assert "teacher.compile()" not in desk.diff
    desk.edit(f"import torch\ndef main(model):{DECAYED}", torch_compile="default")
    assert "+    model.compile()" in desk.diff


def test_a_model_that_is_called_by_its_methods_alone_is_told(desk) -> None:
    desk.edit(
        """
        import torch
        optimizer = torch.optim.AdamW(vae.parameters())
        loss = vae.decode(vae.encode(x)).mean()
        loss.backward()
        """,
        torch_compile="default",
    )
    assert "no call of vae was found" in desk.said()


def test_weights_that_torch_flattens_keep_their_layout(desk) -> None:
    desk.edit(
        """
        import torch
        optimizer = torch.optim.LBFGS(net.parameters())
        loss = net(x).mean()
        loss.backward()
        """,
        IMAGES,
        channels_last=True,
    )
    assert desk.diff == ""
    assert "Torch flattens weights or gradients by a `.view` at train.py:2" in desk.said()


def test_a_position_is_filled_where_the_script_counts_its_arguments(desk) -> None:
    desk.edit(
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(data, 8, True, None, None, 1)
        """,
        redrawing_workers=2,
    )
    assert changed(desk)[1] == "+loader = DataLoader(data, 8, True, None, None, 2)"
    assert "random draws differ" in desk.said()


def test_a_loader_is_followed_through_functions_classes_and_attributes(desk) -> None:
    (desk.folder / "data.py").write_text(
        "from torch.utils.data import DataLoader\n\n\n"
        "def make(data):\n    train = DataLoader(data)\n    return train, DataLoader(data[:9])\n"
    )
    desk.edit(
        """
        from tqdm import tqdm

        from data import make

        class Trainer:
            def __init__(self, loader):
                self.loader = loader

            def step(self, batch):
                batch.sum().backward()

            def fit(self):
                for batch in tqdm(enumerate(self.loader)):
                    self.step(batch)

        one, other = make([])
        Trainer(one).fit()
        """,
        QUIET,
        loader_workers=3,
    )
    assert changed(desk) == [
        "-    train = DataLoader(data)", "+    train = DataLoader(data, num_workers=3)",
    ]  # fmt: skip


def test_several_loaders_that_nobody_can_tell_apart_are_all_left(desk) -> None:
    desk.edit(
        """
        from torch.utils.data import DataLoader
        one, other = DataLoader(a), DataLoader(b)
        fit(one, other)
        """,
        QUIET,
        loader_workers=2,
    )
    assert desk.diff == ""
    assert "write this yourself at train.py:2, since which of these loaders" in desk.said()


@pytest.mark.parametrize(
    ("traits", "why"),
    [
        (fed(draws=True), "The samples draw random numbers"),
        (fed(worker_count=2), "Workers of another number or life"),
        (fed(), "could not be seen"),
        (Traits(), "was not recorded"),
    ],
)
def test_workers_that_would_draw_otherwise_are_not_written(desk, traits, why) -> None:
    desk.edit(
        "from torch.utils.data import DataLoader\nDataLoader(data)\n", traits, loader_workers=2
    )
    assert desk.diff == ""
    assert desk.said().startswith("loader_workers: no edit can do this: keep `hasten run`.")
    assert why in desk.said()


def test_fewer_workers_are_not_asked_of_a_loader_that_needs_some(desk) -> None:
    desk.edit(
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(data, num_workers=2, prefetch_factor=4)
        """,
        redrawing_workers=0,
    )
    assert desk.diff == ""
    assert "asks for what needs workers" in desk.said()


def test_a_layout_is_asked_for_before_the_optimizer_and_at_each_call(desk) -> None:
    source = """
        import torch
        from torch import nn

        def fit(net, loader, optimizer):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(net(images), labels)
                loss.backward()
                optimizer.step()

        model = nn.Conv2d(3, 3, 3).to("cpu")
        # the optimizer
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        fit(model, loader, optimizer)
        """
    text = desk.edit(source, IMAGES, channels_last=True)
    assert changed(desk) == [
        "-        loss = nn.functional.cross_entropy(net(images), labels)",
        "+        loss = nn.functional.cross_entropy("
        "net(images.to(memory_format=torch.channels_last)), labels)",
        "+model.to(memory_format=torch.channels_last)",
    ]
    assert desk.again(IMAGES, channels_last=True) == text
    assert desk.diff == ""


def test_a_dropout_in_another_layout_is_told(desk) -> None:
    body = f"    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}"
    desk.edit(f"{HEAD}{body}", IMAGES, channels_last=True)
    assert "then draws other numbers" not in desk.said()
    desk.edit(f"{HEAD}    drop = torch.nn.Dropout(0.1)\n{body}", IMAGES, channels_last=True)
    assert "train.py:" in desk.said()
    assert "then draws other numbers" in desk.said()


def test_a_view_of_feature_maps_is_told(desk) -> None:
    body = f"    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}"
    desk.edit(f"{HEAD}{body}", IMAGES, channels_last=True)
    assert ".reshape" not in desk.said()
    desk.edit(f"{HEAD}    flat = model(x).view(3, -1)\n{body}", IMAGES, channels_last=True)
    assert "train.py:" in desk.said()
    assert "becomes `.reshape`" in desk.said()


def test_inputs_whose_dimensions_are_unknown_stay(desk) -> None:
    desk.edit(
        f"{HEAD}    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}",
        Traits(model=ModelTraits(has_conv2d=True, conv_input_dimension_count=2)),
        channels_last=True,
    )
    assert changed(desk) == ["+model.to(memory_format=torch.channels_last)"]
    assert "its first convolution converts them" in desk.said()


def test_three_dimensions_have_a_layout_of_their_own_and_both_have_none(desk) -> None:
    source = f"{HEAD}    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    solid = ModelTraits(has_conv3d=True)
    desk.edit(source, Traits(model=solid), channels_last=True)
    assert changed(desk) == ["+model.to(memory_format=torch.channels_last_3d)"]
    both = replace(solid, has_conv2d=True)
    desk.edit(source, Traits(model=both), channels_last=True)
    assert desk.diff == ""
    assert "write this yourself, since the model has convolutions of both" in desk.said()


def test_a_layout_is_left_to_the_lever_where_an_optimizer_loads_its_state(desk) -> None:
    desk.edit(
        """
        import torch
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        optimizer.load_state_dict(state)
        """,
        IMAGES,
        channels_last=True,
    )
    assert desk.diff == ""
    assert "the optimizer loads a state at train.py:3".lower() in desk.said().lower()


def test_each_model_of_a_game_is_laid_out_where_its_optimizer_is_made(desk) -> None:
    text = desk.edit(
        """
        import torch
        one = torch.optim.Adam(maker.parameters())
        other = torch.optim.Adam([{"params": judge.head.parameters()}])
        judge(maker(z))
        """,
        IMAGES,
        channels_last=True,
    )
    assert text.splitlines()[1:5:2] == [
        "maker.to(memory_format=torch.channels_last)",
        "judge.to(memory_format=torch.channels_last)",
    ]


def test_a_model_that_no_optimizer_names_is_left_to_the_user(desk) -> None:
    desk.edit("import torch\noptimizer = build(model)\n", IMAGES, channels_last=True)
    assert desk.diff == ""
    assert "model = model.to(memory_format=torch.channels_last)" in desk.said()


def test_a_compiled_model_keeps_its_class_and_keys(desk) -> None:
    source = """
        import torch

        class Trainer:
            def __init__(self, model):
                self.model = model
                self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        """
    mode = "max-autotune-no-cudagraphs"
    text = desk.edit(source, torch_compile=mode)
    assert f'        self.model.compile(mode="{mode}")\n        self.optimizer =' in text
    assert "torch._inductor.config.fallback_random = True" in text
    assert desk.again(torch_compile=mode) == text
    desk.edit(source, torch_compile="default")
    assert "+        self.model.compile()" in changed(desk)


def test_only_the_models_call_goes_under_autocast(desk) -> None:
    text = desk.edit(
        f"{HEAD}    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}",
        autocast="bfloat16",
    )
    assert changed(desk) == [
        "-    loss = nn.functional.cross_entropy(model(images), labels)",
        '+    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):',
        "+        outputs = model(images)",
        "+    loss = nn.functional.cross_entropy(outputs.float(), labels)",
    ]
    assert desk.again(autocast="bfloat16") == text
    assert desk.diff == ""


def test_float16_is_left_to_the_user_since_losses_have_to_be_scaled(desk) -> None:
    desk.edit(
        f"{HEAD}    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}",
        autocast="float16",
    )
    assert desk.diff == ""
    assert "since gradients have to be unscaled before whatever reads them" in desk.said()
    assert "scaler.scale(loss).backward()" in desk.said()


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        ("out = model(x)\nloss = criterion(out, y)\nloss.backward()", "out = out.float()"),
        ("loss = model(x, y)  # both\nloss.backward()", "loss = loss.float()  # both"),
        ("model(x).mean().backward()", "outputs.float().mean().backward()"),
    ],
)
def test_an_answer_that_is_one_tensor_is_widened(desk, lines, after) -> None:
    text = desk.edit(
        "import torch\ncriterion = torch.nn.MSELoss()\n"
        f"o = torch.optim.SGD(model.parameters(), 1)\n{lines}\n",
        autocast="bfloat16",
    )
    assert f"\n{after}\n" in text


@pytest.mark.parametrize(
    "lines",
    [
        "out = model(x)\nout.loss.backward()",
        "a, b = model(x)\na.backward()",
        "loss = weight() * model(x).mean()\nloss.backward()",
        "loss = mine(model(x), y)\nloss.backward()",
        "if model(x).sum() > 0:\n    x.backward()",
    ],
)
def test_other_answers_are_left_to_the_user(desk, lines) -> None:
    desk.edit(
        f"import torch\no = torch.optim.SGD(model.parameters(), 1)\n{lines}\n", autocast="bfloat16"
    )
    assert desk.diff == ""
    assert "write this yourself at train.py:3" in desk.said()


def test_an_answer_gets_a_name_that_nothing_has(desk) -> None:
    taken = "outputs = answer = outputs_of_model = outputs_2 = 1"
    text = desk.edit(
        f"import torch\no = torch.optim.SGD(model.parameters(), 1)\n{taken}\n"
        "model(x).mean().backward()\n",
        autocast="bfloat16",
    )
    assert "    outputs_3 = model(x)\noutputs_3.float().mean().backward()\n" in text


def test_objects_are_frozen_once_before_the_outermost_loop(desk) -> None:
    text = desk.edit(
        """
        import torch

        def epoch():
            for x in loader:
                model(x).backward()

        def main():
            # all of them
            for _ in range(3):
                epoch()

        main()
        """,
        garbage_collector=10,
    )
    assert text.splitlines()[:3] == ["import gc", "import torch", ""]
    assert (
        "    # all of them\n    gc.collect()  # what is garbage now would stay for ever\n" in text
    )
    assert (
        "\n    gc.set_threshold(10 * gc.get_threshold()[0], *gc.get_threshold()[1:])\n    for"
        in text
    )
    assert desk.again(garbage_collector=10) == text


@pytest.mark.parametrize(
    "starts", ["job.fit()", "fit()\nfit()", "def more():\n    fit()\n\n\nfit()\nmore()"]
)
def test_a_loop_that_may_begin_more_than_once_is_left_to_the_user(desk, starts) -> None:
    desk.edit(
        f"def fit():\n    for x in loader:\n        model(x).backward()\n\n\n{starts}\n",
        garbage_collector=10,
    )
    assert desk.diff == ""
    assert "write this yourself, since which loop trains cannot be told" in desk.said()


def test_an_edit_that_breaks_is_left_to_the_user_and_all_else_is_written(desk, monkeypatch) -> None:
    from hasten.report.edits import EDITS

    def broken(job):
        job.set_up("half = True")
        job.note("half is done")
        raise KeyError("half")

    monkeypatch.setitem(EDITS, "process.flush_denormals", broken)
    desk.edit("import torch\n", flush_denormals=True, intra_op_threads=2)
    assert changed(desk) == ["+", "+torch.set_num_threads(2)"]
    assert len(desk.notes) == 2
    assert "write this yourself, since the edit does not understand these files (KeyError):" in (
        desk.said()
    )
    assert "\n    torch.set_flush_denormal(True)" in desk.said()


def test_the_environment_becomes_the_line_to_type(desk) -> None:
    argv = ("train.py", "--name", "my run")
    desk.edit("import torch\n", argv=argv, omp_wait_policy="passive", huge_pages="torch")
    assert desk.diff == ""
    assert desk.notes[-1] == (
        "Start the script like this:\n    THP_MEM_ALLOC_ENABLE=1 OMP_WAIT_POLICY=passive "
        "KMP_BLOCKTIME=0 python train.py --name 'my run'"
    )


def test_what_only_hasten_does_is_said(desk) -> None:
    desk.edit("import torch\n", batched_fetch=True, sample_cache="1GiB")
    assert all("no edit can do this: keep `hasten run`. " in note for note in desk.notes)
    assert len(desk.notes) == 2


def test_a_diff_of_a_part_of_the_plan_says_that_the_figure_is_not_its_own(desk) -> None:
    desk.edit("import torch\n", flush_denormals=True, batched_fetch=True, sample_cache="1GiB")
    assert desk.notes[-1] == (
        "The published speedup does not hold for this diff, which lacks all or part of "
        "batched_fetch and sample_cache."
    )
    desk.edit("import torch\n", flush_denormals=True)
    assert not desk.notes


def test_threads_are_not_written_without_the_workers_that_they_were_tuned_beside(desk) -> None:
    source = "from torch.utils.data import DataLoader\nDataLoader(data)\n"
    desk.edit(source, fed(draws=True), loader_workers=2, intra_op_threads=1)
    assert desk.diff == ""
    assert "intra_op_threads: not written, since the number was tuned beside" in desk.said()
    desk.edit(source, QUIET, loader_workers=2, intra_op_threads=1)
    assert "+torch.set_num_threads(1)" in changed(desk)


def test_autocast_that_was_tuned_on_another_device_is_not_written(desk) -> None:
    desk.edit(
        f"{HEAD}    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}",
        autocast="bfloat16", device_placement="cuda",
    )  # fmt: skip
    assert desk.diff == ""
    assert "The plan computes on another device than the edited script would." in desk.said()


def test_lines_without_an_edit_come_with_their_place(desk) -> None:
    desk.edit("import torch\n\n\ntorch.nn.utils.clip_grad_norm_(ps, 1.0)\n", idle_clip=True)
    assert "write this yourself at train.py:4, since" in desk.said()
    assert "\n    if max_norm / (norm + 1e-6) < 1:" in desk.said()


def test_places_are_those_of_the_users_own_file(desk) -> None:
    desk.edit(
        "import torch\nx = 1\ntorch.nn.utils.clip_grad_norm_(ps, 1.0)\n",
        idle_clip=True, intra_op_threads=2, malloc_retention=True,
    )  # fmt: skip
    assert "write this yourself at train.py:3, since" in desk.said()


def test_a_whole_plan_written_twice_is_written_once(desk) -> None:
    plan = {
        "autocast": "bfloat16", "channels_last": True, "flush_denormals": True,
        "fused_optimizer": True, "garbage_collector": 1, "intra_op_threads": 2,
        "loader_workers": 2, "malloc_retention": True, "torch_compile": "default",
    }  # fmt: skip
    both = replace(QUIET, model=IMAGES.model)
    text = desk.edit(
        f"{HEAD}    from torch.utils.data import DataLoader\n    loader = DataLoader(data)\n"
        f"    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n{LOOP}",
        both,
        **plan,
    )
    assert desk.again(both, **plan) == text
    assert desk.diff == ""


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_line_ends_stay_and_so_does_a_last_line_without_one(desk, end) -> None:
    path = desk.folder / "train.py"
    path.write_bytes(end.join(["import torch", "o = torch.optim.SGD(ps, 1)"]).encode())
    desk.again(fused_optimizer=True)
    assert (
        path.read_bytes()
        == end.join(["import torch", "o = torch.optim.SGD(ps, 1, fused=True)"]).encode()
    )


@pytest.mark.parametrize(
    "head", [b"# -*- coding: latin-1 -*-\n# caf\xe9\n", b"\xef\xbb\xbf# caf\xc3\xa9\n"]
)
def test_bytes_that_are_not_plain_utf8_stay(desk, head) -> None:
    path = desk.folder / "train.py"
    path.write_bytes(head + b"import torch\no = torch.optim.SGD(ps, 1)\n")
    workload = replace(desk.workload, argv=("train.py",), cwd=str(desk.folder))
    plan = Plan().with_lever("fused_optimizer", True)
    diff = write_edits(workload, plan, traits=Traits(), env={}).diff
    subprocess.run(
        ["patch", "-p1", "--fuzz=0"], input=diff.encode("utf-8", "surrogateescape"),
        cwd=desk.folder, check=True, capture_output=True,
    )  # fmt: skip
    assert path.read_bytes() == head + b"import torch\no = torch.optim.SGD(ps, 1, fused=True)\n"


def test_a_module_is_found_from_the_working_folder(desk) -> None:
    (desk.folder / "job").mkdir()
    (desk.folder / "job" / "__main__.py").write_text("import torch\n\nfrom .parts import x\n")
    (desk.folder / "job" / "parts.py").write_text("import torch\nx = torch.optim.SGD(ps, 1)\n")
    (desk.folder / "train.py").write_text("")
    desk.again(entry=Entry.MODULE, argv=("job",), fused_optimizer=True)
    assert "+++ b/job/parts.py" in desk.diff


def test_a_script_inside_a_command_is_found(desk) -> None:
    desk.edit(
        "import torch\n", entry=Entry.COMMAND, argv=("torchrun", "--x", "train.py"),
        intra_op_threads=1,
    )  # fmt: skip
    assert "+++ b/train.py" in desk.diff


def test_a_script_beside_the_working_folder_says_where_the_diff_belongs(desk) -> None:
    inner = desk.folder / "run"
    inner.mkdir()
    (desk.folder / "train.py").write_text("import torch\n")
    workload = replace(
        desk.workload, entry=Entry.SCRIPT, argv=(str(desk.folder / "train.py"),), cwd=str(inner)
    )
    plan = Plan().with_lever("intra_op_threads", 1)
    made = write_edits(workload, plan, traits=Traits(), env={})
    assert "+++ b/train.py" in made.diff
    assert made.notes[-1].endswith(f"patch -p1 -d {desk.folder}")


@pytest.mark.parametrize("word", ["../train.py", "./../train.py", "../run/../train.py"])
def test_a_script_above_the_working_folder_has_a_name_that_patch_takes(desk, word) -> None:
    inner = desk.folder / "run"
    inner.mkdir()
    script = desk.folder / "train.py"
    script.write_text("import torch\nimport other\n")
    (desk.folder / "other.py").write_text("import torch\n\n\ntorch.set_num_threads(8)\n")
    workload = replace(desk.workload, entry=Entry.SCRIPT, argv=(word,), cwd=f"{inner}/../run")
    made = write_edits(workload, Plan().with_lever("intra_op_threads", 1), traits=Traits(), env={})
    assert {line for line in made.diff.splitlines() if line.startswith("+++")} == {
        "+++ b/train.py", "+++ b/other.py",
    }  # fmt: skip
    subprocess.run(
        ["patch", "-p1", "--fuzz=0", "-d", str(desk.folder)], input=made.diff, text=True,
        check=True, capture_output=True,
    )  # fmt: skip
    assert "torch.set_num_threads(1)" in script.read_text()


def test_a_folder_that_is_a_link_is_left_by_the_way_that_the_system_takes(desk) -> None:
    (desk.folder / "far" / "inner").mkdir(parents=True)
    (desk.folder / "link").symlink_to(desk.folder / "far" / "inner")
    (desk.folder / "far" / "train.py").write_text("import torch\n")
    desk.edit("import csv\n", argv=("link/../train.py",), intra_op_threads=1)
    assert "+++ b/far/train.py\n" in desk.diff


@pytest.mark.parametrize("name", ["my train.py", "a\u00a0b.py", "plain.py"])
def test_a_name_with_a_space_goes_through_patch(desk, name) -> None:
    (desk.folder / name).write_text("import torch\n")
    (desk.folder / "train.py").write_text("")
    desk.again(argv=(name,), intra_op_threads=1)
    assert (desk.folder / name).read_text().endswith("torch.set_num_threads(1)\n")
    assert desk.diff.startswith(f"--- a/{name}\t\n" if name != "plain.py" else "--- a/plain.py\n")


@pytest.mark.parametrize("name", ["notes.ipynb", "gone.py"])
def test_what_is_no_python_file_cannot_be_edited(desk, name) -> None:
    with pytest.raises(UsageError, match=f"Cannot edit {name}"):
        desk.again(argv=(name,), intra_op_threads=1)


def test_a_broken_script_is_one_sentence_and_a_broken_module_a_note(desk) -> None:
    (desk.folder / "train.py").write_text("import torch\nif x\n")
    with pytest.raises(UsageError, match=r"train\.py: line 2 is not Python that can be read\."):
        desk.again(intra_op_threads=1)
    (desk.folder / "other.py").write_text("def (\n")
    desk.edit("import torch\nimport other\n", intra_op_threads=1)
    assert "other.py: line 1" in desk.notes[0]
    assert "+torch.set_num_threads(1)" in changed(desk)


def test_an_endless_expression_is_one_sentence(desk) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        desk.edit(f"import torch\nx = {'+'.join('1' * 900)}\n", intra_op_threads=1)


def test_a_lever_that_is_not_installed_is_refused(desk) -> None:
    with pytest.raises(PlanError, match="nonsense"):
        desk.edit("import torch\n", nonsense=True)


def test_the_diff_in_the_documents_is_what_is_printed(desk) -> None:
    page = (ROOT / "docs" / "edits.md").read_text("utf-8")
    (shown,) = re.findall(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shutil.copy(ROOT / "examples" / "image_pipeline.py", desk.folder)
    workload = replace(desk.workload, argv=("image_pipeline.py",), cwd=str(desk.folder))
    plan = Plan().with_lever("channels_last", True).with_lever("intra_op_threads", 2)
    plan = plan.with_lever("loader_workers", 2).with_lever("omp_wait_policy", "passive")
    traits = replace(IMAGES, loader=fed(draws=True).loader)
    made = write_edits(workload, plan, traits=traits, env={})
    assert made.diff == shown
    assert all(note.splitlines()[-1].strip() in page for note in made.notes)


def test_every_edit_is_asked_for_by_a_lever() -> None:
    from hasten.lever import discover
    from hasten.report.edits import EDITS

    levers = discover().values()
    assert {lever.edit for lever in levers if lever.edit} == EDITS.keys()
    assert not [lever.name for lever in levers if lever.edit and lever.run_only]
