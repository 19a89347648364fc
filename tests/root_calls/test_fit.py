"""What compiled code would not do as plain torch does."""

import threading

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from hasten.root_calls.fit import hooks_on_saved, unfit


def test_a_hook_for_all_modules_leaves_roots_alone() -> None:
    module = torch.nn.Linear(2, 2)
    assert unfit(module) == ""
    for register in (
        torch.nn.modules.module.register_module_forward_pre_hook,
        torch.nn.modules.module.register_module_forward_hook,
        torch.nn.modules.module.register_module_full_backward_pre_hook,
        torch.nn.modules.module.register_module_full_backward_hook,
    ):
        handle = register(lambda *_: None)
        assert unfit(module) == "hooks are registered for all modules"
        handle.remove()
    assert unfit(module) == ""


def test_hooks_on_what_is_saved_are_known_where_torch_does_not_tell(monkeypatch) -> None:
    name = "_top_saved_tensors_default_hooks"
    monkeypatch.delattr(torch._C._autograd, name, raising=False)
    for method in ("__enter__", "__exit__"):
        monkeypatch.setattr(saved_tensors_hooks, method, vars(saved_tensors_hooks)[method])
    saving = hooks_on_saved.__wrapped__()
    assert saving(True) is None
    with save_on_cpu(), saved_tensors_hooks(lambda x: x, lambda x: x):
        assert saving(True) is not None
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(saving(True)))
        thread.start()
        thread.join()
        assert elsewhere == [None]
    with pytest.raises(KeyError), saved_tensors_hooks(lambda x: x, lambda x: x):
        raise KeyError
    assert saving(True) is None
