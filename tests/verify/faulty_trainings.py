"""Three small trainings, changes that are planted in them, and what the gates say of each.

Run as a program, so that one process records them all: `python faulty_trainings.py KIND` prints
JSON.
"""

import json
import random
import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

STEPS, FORCED = 16, 12
KINDS = ("cnn", "transformer", "mlp")

# Faults that the settings do not show: they must be caught by what was computed. Computing a
# forward pass again (checkpointing) is one where it counts twice in the statistics of a norm.
HIDDEN = {
    "gradients x 1.005": KINDS, "steps x 1.005": KINDS, "decay dropped inside": KINDS,
    "every 10th step skipped": KINDS, "momentum lost": KINDS, "loss / 2": KINDS,
    "accumulated twice": KINDS, "labels shifted": KINDS, "layer frozen inside": KINDS,
    "stale gradients": KINDS, "batch repeated": KINDS, "labels of one batch reversed": KINDS,
    "clipping off": ("transformer",), "dropout off inside": ("transformer",),
    "statistics not updated": ("cnn",), "recomputed": ("cnn",), "EMA decay 0.98": ("mlp",),
    "EMA off": ("mlp",),
}  # fmt: skip
# Faults in what the script says or in what goes in.
PLAIN = {
    "lr x 1.005": KINDS, "decay dropped": KINDS, "layer frozen": KINDS, "eval mode": ("cnn",),
    "dropout off": ("transformer",), "dropout 0.2": ("transformer",),
    "BatchNorm momentum": ("cnn",),
    "batches swapped": KINDS, "smaller batches": KINDS,
    "schedule shifted": ("mlp",),
}  # fmt: skip
HARMLESS = {
    "threads": KINDS, "channels_last": ("cnn",), "fused": KINDS, "foreach": KINDS,
    "malloc": KINDS, "workers": KINDS, "aot_eager": KINDS, "set_to_none": KINDS,
    "no oneDNN": KINDS, "recomputed": ("transformer", "mlp"),
    "collector off": KINDS, "batched fetch": KINDS,
}  # fmt: skip
NARROW_FAULTS = (
    "gradients x 1.03", "steps x 1.005", "decay dropped inside", "every 10th step skipped",
    "momentum lost", "loss / 2", "labels shifted", "layer frozen inside",
)  # fmt: skip
HALF_FAULTS = ("steps x 1.005", "loss / 2")


# Other draws hide a gradient that is longer by half a percent; nothing else of these.
DRAWN_FAULTS = (
    "dropout off inside", "steps x 1.005", "decay dropped inside", "every 10th step skipped",
    "momentum lost", "loss / 2", "labels shifted", "layer frozen inside",
)  # fmt: skip


SAMPLE_CHANGES = (
    "noise redrawn", "noise shifted", "noise x 3", "noise repeated", "gradients x 1.005",
    "steps x 1.005",
)  # fmt: skip


class Noisy:
    """Samples with noise that is drawn anew each time they are asked for."""

    def __init__(self, inputs, labels, change):
        import torch

        self.inputs, self.labels = inputs, labels
        self.shift = 0.1 if "noise shifted" in change else 0.0
        self.size = 0.6 if "noise x 3" in change else 0.2
        self.same = "noise repeated" in change
        other = any(name != "noise" and name.startswith("noise") for name in change)
        self.drawn = {"generator": torch.Generator().manual_seed(99)} if other else {}

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        import torch

        x = self.inputs[index]
        if x.is_floating_point():
            noise = torch.full_like(x, 0.5) if self.same else torch.randn(x.shape, **self.drawn)
            x = x + self.size * noise + self.shift
        return x, self.labels[index]


def data_of(kind, change):
    import torch

    drawn = torch.Generator().manual_seed(7)
    shape = {"cnn": (96, 3, 8, 8), "mlp": (96, 12), "transformer": (96, 6)}[kind]
    if kind == "transformer":
        inputs = torch.randint(0, 20, shape, generator=drawn)
    else:
        inputs = torch.randn(shape, generator=drawn)
    labels = torch.randint(0, 4, (96,), generator=drawn)
    if "noise" in " ".join(change):
        return Noisy(inputs, labels, change)
    return torch.utils.data.TensorDataset(inputs, labels)


class Swapped:
    """The batches of another sampler, the fourth and the fifth exchanged."""

    def __init__(self, stock):
        self.stock = stock

    def __len__(self):
        return len(self.stock)

    def __iter__(self):
        batches = list(self.stock)
        batches[3], batches[4] = batches[4], batches[3]
        return iter(batches)


def model_of(kind, change):
    from torch import nn

    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
            nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4),
        )  # fmt: skip
    if kind == "mlp":
        return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12), nn.ReLU(),
                             nn.Linear(12, 4))  # fmt: skip
    p = 0.2 if "dropout 0.2" in change else 0.1
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=p, batch_first=True)
    return nn.Sequential(nn.Embedding(20, 16), layer, nn.Flatten(), nn.Linear(96, 4))


def optimizer_of(kind, model, change):
    import torch

    lr = (0.05 if kind == "cnn" else 0.01) * (1.005 if "lr x 1.005" in change else 1)
    decay = 0.0 if "decay dropped" in change else 0.02
    foreach = False if "foreach" in change else None
    if kind == "cnn":
        return torch.optim.SGD(
            model.parameters(), lr, momentum=0.9, weight_decay=decay, foreach=foreach
        )
    if kind == "mlp":
        return torch.optim.Adam(model.parameters(), lr, weight_decay=decay, foreach=foreach)
    return torch.optim.AdamW(model.parameters(), lr, weight_decay=decay, foreach=foreach)


def plant(optimizer, model, change):
    """Plant faults inside the optimizer's step, where the recorder's hooks see nothing of them."""
    import torch

    state = {"step": 0}

    def before(_, args, kwargs):
        state["weights"] = [p.detach().clone() for p in model.parameters()]
        state["decay"] = optimizer.param_groups[0]["weight_decay"]
        if "decay dropped inside" in change:
            optimizer.param_groups[0]["weight_decay"] = 0.0
        if "momentum lost" in change and state["step"] == 7:
            optimizer.state.clear()

    def after(_, args, kwargs):
        optimizer.param_groups[0]["weight_decay"] = state["decay"]
        with torch.no_grad():
            for index, (p, b) in enumerate(zip(model.parameters(), state["weights"], strict=True)):
                if "steps x 1.005" in change:
                    p.add_(p - b, alpha=0.005)
                skipped = "every 10th step skipped" in change and state["step"] % 10 == 9
                if skipped or ("layer frozen inside" in change and index == 0):
                    p.copy_(b)
        state["step"] += 1

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def bend_gradients(model, change, stale):
    """Change the gradients between backward and step."""
    import torch

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for g in gradients:
            if "gradients x 1.005" in change:
                g.mul_(1.005)
            if "gradients x 1.03" in change:
                g.mul_(1.03)
            if "accumulated twice" in change:
                g.mul_(2)
        if "stale gradients" in change:
            new = [g.clone() for g in gradients]
            for g, old in zip(gradients, stale, strict=False):
                g.copy_(old)
            stale[:] = new


@contextmanager
def setting(change):
    """What a change sets outside the loop; put back at the end."""
    import gc

    import torch
    from torch import nn

    from hasten.root_calls import loss_scaling

    with ExitStack() as scope:
        torch.set_num_threads(2 if "threads" in change else 1)
        scope.callback(torch.set_num_threads, 1)
        if "no oneDNN" in change:
            scope.enter_context(torch.backends.mkldnn.flags(enabled=False))
        if "collector off" in change:
            gc.disable()
            scope.callback(gc.enable)
        if "dropout off inside" in change:
            scope.callback(setattr, nn.functional, "dropout", nn.functional.dropout)
            nn.functional.dropout = lambda x, p=0.5, training=True, inplace=False: x
        if "scaled too high" in change:
            scope.callback(setattr, loss_scaling, "_FIRST", loss_scaling._FIRST)
            loss_scaling._FIRST = 2.0**22
        yield


def model_for(kind, change):
    """Return the model, with what is planted in its parts."""
    import torch

    model = model_of(kind, change)
    if "layer frozen" in change:
        model[0].requires_grad_(False)
    if "BatchNorm momentum" in change:
        model[1].momentum = 0.2
    if "eval mode" in change:
        model[1].eval()
    if "dropout off" in change:
        [m.eval() for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    return model


def loader_for(kind, change):
    """Return the loader, with what is planted in its order."""
    import torch

    size = 6 if "smaller batches" in change else 8
    loader = torch.utils.data.DataLoader(data_of(kind, change), batch_size=size, shuffle=True)
    if "batches swapped" in change:
        order = Swapped(loader.batch_sampler)
        loader = torch.utils.data.DataLoader(loader.dataset, batch_sampler=order)
    return loader


def forward(model, x, change):
    """Return the outputs of the model."""
    import torch

    statistics = [b.clone() for b in model.buffers()]
    if "recomputed" in change:
        out = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
    else:
        out = model(x)
    if "statistics not updated" in change:
        for b, old in zip(model.buffers(), statistics, strict=True):
            b.data.copy_(old)
    return out


def follow(shadow, model, change):
    """Update the running average of the weights."""
    decay = 0.98 if "EMA decay 0.98" in change else 0.99
    if "EMA off" not in change:
        for s, p in zip(shadow, model.parameters(), strict=True):
            s.data.mul_(decay).add_(p.detach(), alpha=1 - decay)


def batches_of(loader, change):
    """Yield batches without end, with what is planted between the loader and the model."""
    kept = []
    while True:
        for x, y in loader:
            kept.append((x, y))
            if "batch repeated" in change and len(kept) == 6:
                yield kept[-2]
            elif "labels of one batch reversed" in change and len(kept) == 3:
                yield x, y.flip(0)
            elif "labels shifted" in change:
                yield x, (y + 1) % 4
            else:
                yield x, y


def train(kind, change, live):
    """Train for STEPS steps with what is planted in them; `live` is the recorded training."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    random.seed(0)
    loader, model = loader_for(kind, change), model_for(kind, change)
    optimizer = optimizer_of(kind, model, change)
    plant(optimizer, model, change)
    size = 4 if "schedule shifted" in change else 5
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, size, gamma=0.9)
    shadow = [p.detach().clone() for p in model.parameters()]
    if "aot_eager" in change:
        twin = torch.compile(model, backend="aot_eager")
        live.on_call(lambda module, call, args, kwargs: twin(*args))
    stale = []
    for _, (x, y) in zip(range(STEPS), batches_of(loader, change), strict=False):
        loss = nn.functional.cross_entropy(forward(model, x, change), y)
        loss = loss / 2 if "loss / 2" in change else loss
        optimizer.zero_grad(set_to_none="set_to_none" not in change)
        loss.backward()
        if kind == "transformer" and "clipping off" not in change:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        bend_gradients(model, change, stale)
        optimizer.step()
        if kind == "mlp":
            follow(shadow, model, change)
            schedule.step()


class Laboratory:
    """Record trainings of one kind, each once, and ask the gates."""

    def __init__(self, kind, root, base=()):
        self.kind, self.root, self.base = kind, Path(root), tuple(base)
        self.taught = self.root / "taught"
        self.taught.mkdir(parents=True)
        self.first = self.record(teach=True, keeps=True)

    def record(self, change=(), *, plan=None, teach=False, **details):
        from hasten.child import AppliedLevers
        from hasten.instrument import Watch
        from hasten.protocol import Recorded, RecordingSpec
        from hasten.verify.record import Recorder
        from hasten.verify.recorded_run import read_evidence

        folder = Path(tempfile.mkdtemp(dir=self.root))
        take = RecordingSpec(
            step_count=STEPS, forced_count=FORCED,
            teacher=None if teach else str(self.taught), **details,
        )  # fmt: skip
        watch, found = Watch(measuring=True), []
        recorder = Recorder(
            take, str(folder), watch, done=lambda said: found.append(json.dumps(said))
        )
        applied = AppliedLevers(watch.live)
        with setting(change):
            try:
                applied.switch(plan or {})
                watch.install()
                train(self.kind, {*self.base, *change}, watch.live)
            finally:
                recorder.finish()
                applied.switch({})
                watch.detach()
        if teach:
            for path in folder.iterdir():
                shutil.copy(path, self.taught)
        return read_evidence(Recorded(**json.loads(found[0])), folder)

    def floor(self, scale=2.0**-23, seed=1):
        return self.record(perturb_ratio=scale, perturb_seed=seed)


def told(*gates):
    """Return a verdict: the gates as JSON."""
    return {
        "passed": [gate.passed for gate in gates],
        "says": [gate.message for gate in gates],
    }


PLANS = {
    "channels_last": {"channels_last": True}, "fused": {"fused_optimizer": True},
    "malloc": {"malloc_retention": True}, "workers": {"loader_workers": 2},
    "batched fetch": {"batched_fetch": True},
}  # fmt: skip


def of(table, kind):
    """Return the names in a table that are planted in one kind of training."""
    return [name for name, kinds in table.items() if kind in kinds]


def judge_same_draws(lab):
    """Record all that keeps the draws, and tell what the gates say."""
    from hasten.verify import gates, precision

    first, floors, wide = lab.first, [lab.floor()], [lab.floor(2.0**-8)]

    def rounding(seen):
        return gates.within_floor(first, seen, floors)

    def structure(seen):
        return gates.same_structure(first, seen, redraws=False)

    facts = {"repeats": gates.repeatable(first, lab.record()).passed}
    hidden = {name: lab.record({name}) for name in of(HIDDEN, lab.kind)}
    plain = {name: lab.record({name}) for name in of(PLAIN, lab.kind)}
    harmless = {name: lab.record({name}, plan=PLANS.get(name)) for name in of(HARMLESS, lab.kind)}
    facts["hidden"] = {name: told(rounding(seen)) for name, seen in hidden.items()}
    facts["plain"] = {name: told(structure(seen)) for name, seen in plain.items()}
    facts["harmless"] = {
        name: told(structure(seen), rounding(seen)) for name, seen in harmless.items()
    }
    narrow = {
        name: lab.record({name}, plan={"autocast": "bfloat16"}, feeds=True)
        for name in ("", *NARROW_FAULTS)
    }
    facts["narrow"] = {
        name: told(
            precision.within_precision(first, seen, wide, epsilon_ratio=2.0**-8),
            precision.same_update(first, seen, floors),
        )
        for name, seen in narrow.items()
    }
    halves = {
        name: lab.record({name}, plan={"autocast": "float16"}, feeds=True)
        for name in ("", "scaled too high", *HALF_FAULTS)
    }
    wider = [lab.floor(2.0**-11)]
    facts["half"] = {
        name: told(
            precision.within_precision(first, seen, wider, epsilon_ratio=2.0**-11),
            precision.same_update(first, seen, floors),
        )
        for name, seen in halves.items()
    }
    return facts


def judge_model_draws(lab):
    """Record a model that draws otherwise, and tell what the gates say."""
    from hasten.verify import distribution, precision

    others = [lab.record(feeds=True, reseed=seed) for seed in (1, 2)]
    floors = [lab.floor()]
    seen = {name: lab.record({name}, feeds=True, reseed=77) for name in ("", *DRAWN_FAULTS)}
    return {
        name: told(
            distribution.within_draws(lab.first, evidence, others),
            precision.same_update(lab.first, evidence, floors),
        )
        for name, evidence in seen.items()
    }


def judge_sample_draws(lab):
    """Record samples that are drawn otherwise, and tell what the gates say."""
    from hasten.verify import distribution, gates

    floors = [lab.floor()]
    seen = {name: lab.record({name, "noise redrawn"}, feeds=True) for name in SAMPLE_CHANGES}
    return {
        name: told(
            gates.same_structure(lab.first, evidence, redraws=True),
            distribution.same_law(lab.first, evidence),
            gates.within_floor(lab.first, evidence, floors),
        )
        for name, evidence in seen.items()
    }


def judge_orders(lab):
    """Let other processes fetch, which draw otherwise, and tell what is said of the order."""
    from hasten.verify import gates

    plan = {"redrawing_workers": 2}
    return {
        name: told(gates.same_structure(lab.first, lab.record({name}, plan=plan), redraws=True))
        for name in ("", "batches swapped")
    }


def main(kind):
    """Record everything that is planted in one kind of training."""
    import gc

    import torch._dynamo  # noqa: F401

    gc.freeze()  # each recorded run looks through all objects
    with tempfile.TemporaryDirectory() as root:
        own = Laboratory(kind, f"{root}/own")
        facts = judge_same_draws(own)
        if kind == "transformer":
            facts["draws"] = judge_model_draws(own)
        else:
            noisy = Laboratory(kind, f"{root}/noisy", base={"noise"})
            facts["fed"], facts["orders"] = judge_sample_draws(noisy), judge_orders(noisy)
    return facts


if __name__ == "__main__":
    print(json.dumps({kind: main(kind) for kind in sys.argv[1:]}))
