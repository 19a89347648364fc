"""channels_last: files have the layout that they would have without it."""

import pytest

SAFETENSORS = {
    "_flatten": """
def _flatten(tensors):
    check(tensors)
    return {k: _tobytes(v, k) for k, v in tensors.items()}

def _tobytes(tensor, name):
    if not tensor.is_contiguous():
        raise ValueError(f"You are trying to save a non contiguous tensor: `{name}`")
    return tensor.numpy().tobytes()

def save_file(tensors, path):
    open(path, "wb").write(b"".join(_flatten(tensors).values()))
""",
    "_flatten_as_ptr": """
def _flatten_as_ptr(tensors, keep_alive_buffer):
    check(tensors)
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"You are trying to save a non contiguous tensor: `{name}`")
        keep_alive_buffer.append(tensor)
    return {k: v.numpy().tobytes() for k, v in tensors.items()}

def save_file(tensors, path):
    open(path, "wb").write(b"".join(_flatten_as_ptr(tensors, []).values()))
""",
}
CHECK = """
def check(tensors):
    places = [t.untyped_storage().data_ptr() for t in tensors.values()]
    if len(set(places)) < len(places):
        raise RuntimeError("Some tensors share memory")
"""  # what all releases do before they write

PROGRAM = r"""
import copy, io, pickle, sys, tempfile, threading
from pathlib import Path

PLAN = {"channels_last": True, "fused_optimizer": True}
NHWC = torch.channels_last
MODULES = {modules}
folder = Path(tempfile.mkdtemp())
(folder / "safetensors").mkdir()
(folder / "safetensors" / "__init__.py").write_text("")
sys.path.insert(0, str(folder))


def last(t):
    return t.is_contiguous(memory_format=NHWC) and not t.is_contiguous()


def loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, nn.Module):
        return tensors(value.state_dict())
    parts = value.values() if isinstance(value, dict) else value
    return [t for part in parts if isinstance(part, (torch.Tensor, dict, list, tuple))
            for t in tensors(part)]


def trained(plan):
    run = Run()
    run.pulled.switch(plan)
    run.train(count=4)
    run.features = vars(run.net).pop("seen").detach()
    return run


own, run = trained({}), trained(PLAN)
facts["laid out"] = last(run.net.conv.weight)
facts["strides"] = {}
for name, read in {
    "state_dict": lambda run: loaded(run.net.state_dict()),
    "model": lambda run: loaded(run.net),
    "copy": lambda run: loaded(copy.deepcopy(run.net)),
    "optimizer": lambda run: loaded(run.optimizer.state_dict()),
    "gradients": lambda run: loaded([p.grad for p in run.net.parameters()]),
    "pickle": lambda run: pickle.loads(pickle.dumps(run.net.state_dict())),
    "features": lambda run: loaded(run.features),
}.items():
    plain, under = tensors(read(own)), tensors(read(run))
    facts["strides"][name] = [t.stride() for t in under] == [t.stride() for t in plain]
    facts["strides"][f"{name}, equal"] = all(
        torch.allclose(a, b, atol=1e-4) for a, b in zip(plain, under))

facts["sizes"] = [len(pickle.dumps(loaded(r.net.state_dict()))) for r in (own, run)]
state = loaded({"model": run.net.state_dict(), "same": run.net.state_dict()})
one, other = (state[key]["conv.weight"] for key in ("model", "same"))
facts["tied"] = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
before = loaded(run.net.conv.weight.detach())
run.train(count=1)
after = loaded(run.net.conv.weight.detach())
facts["anew"] = bool(torch.equal(after, run.net.conv.weight)) and not torch.equal(before, after)
held = pickle.Pickler(io.BytesIO(), protocol=2)
held.dump(run.net.conv.weight.detach())  # and lives on, with all that it wrote
run.train(count=1)
facts["beside a file that is held"] = bool(
    torch.equal(loaded(run.net.conv.weight.detach()), run.net.conv.weight))
del held
views = loaded({"part": run.net.conv.weight.detach()[:2], "all": run.net.conv.weight.detach()})
facts["part"] = bool(torch.equal(views["part"], views["all"][:2]))
facts["requires grad"] = [loaded(run.net.conv.weight).requires_grad,
                          type(loaded(run.net.conv.weight)).__name__]
gradient = run.net.conv.weight.grad
copy.copy(gradient).zero_()
facts["shallow copy"] = bool((gradient == 0).all())
facts["still laid out"] = last(run.net.conv.weight)
found = []
thread = threading.Thread(target=lambda: found.append(loaded(run.net.conv.weight.detach())))
thread.start()
thread.join()
facts["thread"] = found[0].is_contiguous()

# ---- safetensors, of old and of new, which comes after the lever

facts["safetensors"] = {}
for kind, source in MODULES.items():
    (folder / "safetensors" / "torch.py").write_text(source)
    for name in ("safetensors.torch", "safetensors"):
        sys.modules.pop(name, None)
    import importlib
    importlib.invalidate_caches()
    run.pulled.switch({})
    run.pulled.switch(PLAN)
    run.net(torch.rand(2, 3, 8, 8))
    facts["imported"] = "safetensors.torch" in sys.modules
    from safetensors.torch import save_file
    save_file(run.net.state_dict(), folder / "weights")
    bytes_ = (folder / "weights").read_bytes()
    expected = b"".join(
        t.contiguous().numpy().tobytes() for t in run.net.state_dict().values())
    seen = [last(run.net.conv.weight), bytes_ == expected]
    for wrong in ({"a": run.net.conv.weight.detach(), "b": run.net.conv.weight.detach()},
                  {"a": torch.rand(3, 4).t()}):
        try:
            save_file(wrong, folder / "weights")
        except (RuntimeError, ValueError) as error:
            seen.append(str(error).split(":")[0])
    run.pulled.switch({})
    seen.append(hasattr(getattr(sys.modules["safetensors.torch"], kind), "__wrapped__"))
    facts["safetensors"][kind] = seen
facts["put back"] = hasattr(torch.Tensor._reduce_ex_internal, "__wrapped__")
run.close()
"""

REAL = r"""
import tempfile
from safetensors.torch import load_file, save_file, save_model

run = Run()
run.pulled.switch({"channels_last": True})
run.train(count=3)
with tempfile.TemporaryDirectory() as folder:
    save_file(run.net.state_dict(), f"{folder}/a")
    save_model(run.net, f"{folder}/b")
    facts["equal"] = [
        all(torch.equal(t, run.net.state_dict()[k]) for k, t in load_file(f"{folder}/{n}").items())
        for n in "ab"]
facts["laid out"] = not run.net.conv.weight.is_contiguous()
"""


@pytest.fixture(scope="module")
def files(training):
    modules = {kind: CHECK + source for kind, source in SAFETENSORS.items()}
    return training(PROGRAM.replace("{modules}", repr(modules)))


@pytest.mark.child
def test_files_of_torch_and_pickle_have_the_strides_and_numbers_of_the_script(files) -> None:
    assert files["laid out"]
    for case, same in files["strides"].items():
        assert same, case
    assert files["sizes"][0] == files["sizes"][1]
    assert files["requires grad"] == [True, "Parameter"]
    assert files["still laid out"]


@pytest.mark.child
def test_a_shallow_copy_shares_the_memory_as_ever(files) -> None:
    assert files["shallow copy"]


@pytest.mark.child
def test_weights_that_share_memory_share_it_in_a_file_and_no_file_has_old_numbers(files) -> None:
    assert files["tied"]
    assert files["anew"]
    assert files["beside a file that is held"]
    assert files["part"]


@pytest.mark.child
def test_files_that_another_thread_writes_are_the_same(files) -> None:
    assert files["thread"]


@pytest.mark.child
@pytest.mark.parametrize("kind", sorted(SAFETENSORS))
def test_safetensors_takes_the_weights_and_refuses_what_it_would_refuse_anyway(kind, files) -> None:
    assert not files["imported"]
    refused = ["Some tensors share memory", "You are trying to save a non contiguous tensor"]
    assert files["safetensors"][kind] == [True, True, *refused, False]
    assert not files["put back"]


@pytest.mark.child
def test_the_real_safetensors_does_so_too(training) -> None:
    pytest.importorskip("safetensors")
    facts = training(REAL)
    assert facts["equal"] == [True, True]
    assert facts["laid out"]
