"""Options of optimizers: they are there while one steps, and nowhere else."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hasten.instrument.live import LiveTraining


def weights(*sizes):
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(size)) for size in sizes or ((4, 3), (5,))]


class Stepped:
    """An optimizer whose fused form a lever chooses, and the flags of each of its steps."""

    def __init__(self, optimizer, choose=lambda optimizer: {"fused": True}):
        self.optimizer, self.flags, self.asked_count = optimizer, [], 0
        optimizer._optimizer_step_code = lambda: self.flags.append(self.now())  # before any hook
        live = LiveTraining()

        def counted(optimizer):
            self.asked_count += 1
            return choose(optimizer)

        self.undo = live.on_options(counted)
        live.optimizers.add(optimizer)
        self._live = live

    def now(self):
        return [group["fused"] for group in self.optimizer.param_groups]

    def step(self, count=1):
        for _ in range(count):
            for group in self.optimizer.param_groups:
                for p in group["params"]:
                    p.grad = torch.ones_like(p)
            self.optimizer.step()
        return self


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, whose groups are its own: SAM and its like."""

    def __init__(self, base):
        super().__init__(base.param_groups, {})
        self.base, self.param_groups = base, base.param_groups

    def step(self, closure=None):
        self.base.step()


def test_the_groups_hold_the_options_within_a_step_alone() -> None:
    stepped = Stepped(torch.optim.SGD(weights(), 0.1, momentum=0.9)).step(3)
    assert stepped.flags == [[None], [True], [True]]
    assert stepped.now() == [None]
    assert stepped.optimizer.param_groups[0]["foreach"] is None


def test_a_wrapper_with_the_same_groups_saves_and_prints_what_the_script_said() -> None:
    stepped = Stepped(torch.optim.AdamW(weights()))
    wrapper = Wrapper(stepped.optimizer)
    stepped.step()
    wrapper.step()
    assert stepped.flags[-1] == [True]
    saved = wrapper.state_dict()["param_groups"][0]
    assert (saved["fused"], saved["foreach"]) == (None, None)
    assert "fused: None" in repr(wrapper)


@pytest.mark.parametrize("late", [False, True])
def test_hooks_of_the_script_behind_a_step_see_its_own_options(late) -> None:
    optimizer, seen = torch.optim.SGD(weights(), 0.1), []
    stepped = None if late else Stepped(optimizer)
    optimizer.register_step_post_hook(
        lambda optimizer, args, kwargs: seen.append(optimizer.param_groups[0]["fused"])
    )
    stepped = stepped or Stepped(optimizer)
    stepped.step(3)
    assert stepped.flags[-1] == [True]
    assert seen == [None] * 3


def test_hooks_that_the_script_registers_later_keep_their_numbers() -> None:
    before = RemovableHandle.next_id
    assert Stepped(torch.optim.SGD(weights(), 0.1)).step(2).flags[-1] == [True]
    assert RemovableHandle.next_id == before


def refuse(optimizer, args, kwargs):
    raise ValueError("the script's own")


def test_a_step_that_failed_leaves_nothing_in_a_checkpoint_and_the_next_one_clears_up() -> None:
    stepped = Stepped(torch.optim.Adam(weights(), foreach=False)).step(2)
    hook = stepped.optimizer.register_step_pre_hook(refuse)
    with pytest.raises(ValueError, match="own"):
        stepped.step()
    hook.remove()
    assert stepped.optimizer.state_dict()["param_groups"][0]["fused"] is None
    for copied in (
        pickle.loads(pickle.dumps(stepped.optimizer)),
        copy.deepcopy(stepped.optimizer),
    ):
        assert copied.param_groups[0]["fused"] is None
        assert copied.param_groups[0]["foreach"] is False
    assert stepped.step().flags[-1] == [True]
    group = stepped.optimizer.param_groups[0]
    assert (group["fused"], group["foreach"]) == (None, False)


def test_a_checkpoint_from_within_a_step_says_what_the_script_said() -> None:
    stepped, saved = Stepped(torch.optim.SGD(weights(), 0.1)).step(2), []
    optimizer = stepped.optimizer

    def closure():
        assert optimizer.param_groups[0]["fused"] is True
        saved.append(optimizer.state_dict()["param_groups"][0]["fused"])
        return torch.zeros(())

    optimizer.step(closure)
    assert saved == [None]


def test_a_lever_is_asked_again_only_where_a_weight_or_a_gradient_lies_otherwise() -> None:
    parts = weights((4, 3), (5,))
    stepped = Stepped(torch.optim.SGD(parts, 0.1)).step(4)
    asked_count = stepped.asked_count
    stepped.step(3)
    assert stepped.asked_count == asked_count
    parts[0].data = parts[0].data.clone()
    assert stepped.step(2).asked_count == asked_count + 1
    for p in parts:
        p.grad = torch.ones_like(p)
    parts[0].grad = torch.ones(3, 4).t()
    stepped.optimizer.step()
    assert stepped.asked_count == asked_count + 2
    assert stepped.step(2).asked_count == asked_count + 3


def test_in_a_step_like_the_last_one_no_lever_is_asked() -> None:
    stepped = Stepped(torch.optim.AdamW(weights((4, 3), (5,)))).step(4)
    asked_count = stepped.asked_count
    assert stepped.step(3).asked_count == asked_count
    state = next(iter(stepped.optimizer.state.values()))
    state["exp_avg"] = state["exp_avg"].clone()
    assert stepped.step(2).asked_count == asked_count + 1


def test_options_of_a_script_in_float64_are_chosen_once() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        stepped = Stepped(torch.optim.AdamW(weights((4, 3)))).step(3)
        asked_count = stepped.asked_count
        assert stepped.step(4).asked_count == asked_count
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_hook_that_comes_behind_has_its_first_step_under_the_scripts_own_options() -> None:
    stepped = Stepped(torch.optim.SGD(weights((4, 3)), 0.1)).step(3)
    (weight,) = stepped.optimizer.param_groups[0]["params"]

    def turn(optimizer, args, kwargs):
        weight.grad = weight.grad.t().contiguous().t()

    hook = stepped.optimizer.register_step_pre_hook(turn)
    stepped.optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: None)
    asked_count = stepped.asked_count
    assert stepped.step(2).flags[-2:] == [[None], [True]]
    assert stepped.asked_count == asked_count + 1
    hook.remove()
    assert stepped.step().asked_count == asked_count + 2


def test_a_sparse_gradient_that_comes_later_is_noticed_and_nothing_is_asked_of_its_strides() -> (
    None
):
    (table,) = weights((4, 3))
    stepped = Stepped(
        torch.optim.SGD([table], 0.1),
        lambda optimizer: None if table.grad.is_sparse else {"fused": True},
    ).step(3)
    table.grad = torch.ones(4, 3).to_sparse(1)
    stepped.optimizer.step()
    assert stepped.flags[-2:] == [[True], [None]]


def test_rates_of_a_scheduler_and_groups_that_come_in_stay_the_scripts() -> None:
    stepped = Stepped(torch.optim.SGD(weights(), 1.0, momentum=0.9))
    schedule = torch.optim.lr_scheduler.StepLR(stepped.optimizer, 1, gamma=0.5)
    for _ in range(3):
        stepped.step()
        schedule.step()
    assert stepped.optimizer.param_groups[0]["lr"] == 0.125
    stepped.optimizer.add_param_group({"params": weights((2,))})
    assert stepped.step(2).flags[-2:] == [[None, None], [True, True]]
    assert stepped.now() == [None, None]


def test_a_gradient_scaler_scales_as_it_would_without() -> None:
    ends = []
    for choose in (lambda optimizer: None, lambda optimizer: {"fused": True}):
        (weight,) = weights((6, 5))
        stepped = Stepped(torch.optim.AdamW([weight], 0.1), choose)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        for _ in range(4):
            stepped.optimizer.zero_grad()
            scaler.scale((weight**2).sum()).backward()
            scaler.step(stepped.optimizer)
            scaler.update()
        ends.append((weight.detach(), scaler.get_scale(), stepped.flags[-1]))
    (own, own_scale, _), (under, scale, flags) = ends
    assert flags == [True]
    assert scale == own_scale > 4
    assert torch.allclose(own, under)


def test_the_undo_gives_everything_back() -> None:
    stepped = Stepped(torch.optim.SGD(weights(), 0.1)).step(2)
    stepped.undo()
    optimizer = stepped.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert "__getstate__" not in vars(optimizer)
    assert stepped.step().flags[-1] == [None]


@pytest.mark.parametrize("empty", [dict.clear, lambda state: state.update(momentum_buffer=None)])
def test_a_momentum_that_the_script_forgets_comes_anew_in_a_step_of_its_own(empty) -> None:
    ends = []
    for choose in (lambda optimizer: None, lambda optimizer: {"fused": True}):
        parts = weights()
        stepped = Stepped(torch.optim.SGD(parts, 0.1, momentum=0.9), choose).step(3)
        empty(stepped.optimizer.state[parts[0]])
        stepped.step(2)
        empty(stepped.optimizer.state[parts[0]])
        ends.append([p.detach() for p in stepped.step(2).optimizer.param_groups[0]["params"]])
    assert stepped.flags == [[None], [True], [True], [None], [True], [None], [True]]
    assert all(map(torch.allclose, *ends))


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
def test_the_fused_kernels_find_the_count_of_steps_on_the_device_of_the_weight() -> None:
    fakes = pytest.importorskip("torch._subclasses.fake_tensor")
    with fakes.FakeTensorMode(allow_non_fake_inputs=True):
        weight = nn.Parameter(torch.ones(4, device="cuda"))
        stepped = Stepped(torch.optim.Adam([weight], foreach=False))
        state, devices = stepped.optimizer.state, []
        for _ in range(3):
            stepped.step()
            devices.append(state[weight]["step"].device.type)
        saved = stepped.optimizer.state_dict()["state"][0]["step"]
        stepped.undo()
    assert stepped.flags == [[None], [True], [True]]
    assert devices == ["cpu", "cuda", "cuda"]
    assert saved.device.type == state[weight]["step"].device.type == "cpu"


def test_a_weight_that_joins_a_group_has_its_first_update_under_the_scripts_own_options() -> None:
    ends = []
    for choose in (lambda optimizer: None, lambda optimizer: {"fused": True}):
        first, second = weights((4, 3), (5,))
        stepped = Stepped(torch.optim.SGD([first], 0.1, momentum=0.9), choose).step(3)
        stepped.optimizer.param_groups[0]["params"].append(second)
        stepped.step(2)
        ends.append([first.detach(), second.detach()])
    assert stepped.flags == [[None], [True], [True], [None], [True]]
    assert all(map(torch.allclose, *ends))


@pytest.fixture
def _doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("_doubles")
def test_a_count_of_steps_that_the_script_forgets_is_not_looked_for() -> None:
    stepped = Stepped(torch.optim.Adam(weights(), foreach=False)).step(3)
    for state in stepped.optimizer.state.values():
        state.clear()
    assert stepped.optimizer.state_dict()["state"][0] == {}
    stepped.step(2)
    assert stepped.flags == [[None], [True], [True], [None], [True]]
    assert stepped.optimizer.state_dict()["state"][0]["step"] == 2.0


class Counting(torch.optim.SGD):
    """An optimizer that keeps counters beside the states of its weights."""

    def __init__(self, parameters):
        super().__init__(parameters, 0.1)
        self.state["k"], self.state["size"] = 0, torch.tensor([1.0, 2.0])

    def step(self, closure=None):
        self.state["k"] += 1
        super().step(closure)

    def __getstate__(self):
        return self.__dict__


def test_what_is_no_state_of_a_weight_is_left_alone() -> None:
    stepped = Stepped(Counting(weights()), lambda optimizer: {}).step(3)
    assert stepped.optimizer.state["k"] == 3


def test_a_class_whose_pickles_are_all_that_it_holds_stays_as_it_is() -> None:
    optimizer = Counting(weights())
    stepped = Stepped(optimizer, lambda optimizer: {"weight_decay": 0.1})
    del optimizer._optimizer_step_code
    group = optimizer.param_groups[0]
    for part in group["params"]:
        part.grad = torch.ones_like(part)
    optimizer.step()
    other = copy.deepcopy(optimizer)
    again = pickle.loads(pickle.dumps(optimizer))
    assert optimizer.param_groups[0] is group
    for one in (other, again):
        assert one.state["k"] == 1
        assert one.param_groups[0]["weight_decay"] == 0
        assert "__getstate__" not in vars(one)
        assert not one._optimizer_step_pre_hooks
    shallow = copy.copy(optimizer)
    assert shallow.param_groups[0] is group
    stepped.undo()
