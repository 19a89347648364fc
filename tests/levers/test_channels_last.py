"""channels_last: weights, gradients, moments and inputs change layout together, and back."""

import pytest

from upshift.lever import Scene
from upshift.levers.channels_last import LEVER
from upshift.testing import LAPTOP


def scene(**traits):
    told = {name.replace("__", "."): value for name, value in traits.items()}
    return Scene(machine=LAPTOP, traits=told)


def test_needs_a_convolution() -> None:
    assert LEVER.settings(scene(model__conv=True)) == (True,)
    assert LEVER.settings(scene(model__conv=False, model__conv3d=True)) == (True,)
    assert LEVER.settings(scene(model__conv=False, model__conv3d=False)) == ()
    assert LEVER.settings(scene()) == ()
    assert LEVER.why_not(scene()) == "the model has no 2-D or 3-D convolution"


def test_does_not_give_what_the_script_has_given_itself() -> None:
    laid_out = scene(model__conv=True, model__channels_last=True)
    assert LEVER.settings(laid_out) == ()
    assert LEVER.why_not(laid_out) == "the script gives its convolutions this layout already"
    assert LEVER.settings(scene(model__conv=True, model__channels_last=False)) == (True,)


def test_leaves_an_optimizer_alone_that_reads_flat_gradients() -> None:
    assert LEVER.settings(scene(model__conv=True, optimizer__name="LBFGS")) == ()
    assert "LBFGS" in LEVER.why_not(scene(model__conv=True, optimizer__name="LBFGS"))


PROGRAM = r"""
PLAN = {"channels_last": True}
NHWC = torch.channels_last


def layouts(run):
    weight = run.net.conv.weight
    state = run.optimizer.state[weight]
    tensors = [weight, weight.grad, *(state[name] for name in sorted(state) if name != "step")]
    return [t.is_contiguous(memory_format=NHWC) and not t.is_contiguous() for t in tensors]


run, seen = Run(), {}

def at(step):
    if step == 2:
        run.pulled.switch(PLAN)
        seen["pulled"] = layouts(run)
    if step == 4:
        seen["after steps"] = layouts(run)
        seen["activations"] = (
            run.net.seen.is_contiguous(memory_format=NHWC) and not run.net.seen.is_contiguous())
        run.pulled.switch({})
        seen["back"] = layouts(run)

run.train(at, count=5).close()
facts.update(seen)

run = Run()
run.net.to(memory_format=NHWC)  # the script's own choice
run.train(lambda step: run.pulled.switch(PLAN if step in (1, 2) else {}), count=5)
run.close()
facts["own layout"] = layouts(run)

class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)
    def forward(self, batch, more):
        batch["seen"] = True
        more.append(batch["image"].shape[0])
        return self.conv(batch["image"]).mean()

watch = Watch(measuring=False)
pulled = Pulled(watch.live)
watch.install()
pulled.switch(PLAN)
more, image = [], torch.rand(2, 3, 5, 5)
net = Writes()
net(dict(image=image), more)
facts["image untouched"] = image.is_contiguous()
facts["list written"] = more == [2]
mask = torch.ones(2, 3, 5, 5, dtype=torch.long)

class Echo(nn.Module):
    def forward(self, *parts):
        return parts

parts = Echo()(mask, image[0], "word", None)
facts["others"] = parts[0] is mask and parts[1].stride() == image[0].stride()


def last(tensor):
    kind = NHWC if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=kind) and not tensor.is_contiguous()


class Sees(nn.Module):
    def __init__(self, *layers, flat=False):
        super().__init__()
        self.layers, self.flat = nn.ModuleList(layers), flat
    def forward(self, x):
        self.given = x
        for layer in self.layers:
            x = layer(x)
        self.seen = x
        return x.view(x.size(0), -1) if self.flat else x

def stepped(net, x, make=lambda p: torch.optim.Adam(p, fused=True)):
    optimizer = make(net.parameters())
    net(x).square().mean().backward()
    optimizer.step()
    return optimizer

video = Sees(nn.Conv3d(2, 4, 3), nn.ConvTranspose3d(4, 3, 3))
trainer = stepped(video, torch.rand(2, 2, 6, 6, 6))
moments = trainer.state
facts["3-D"] = [last(t) for t in (
    video.given, video.seen, *(layer.weight for layer in video.layers),
    *(moments[layer.weight]["exp_avg"] for layer in video.layers))]
up = Sees(nn.ConvTranspose2d(3, 4, 2), nn.Conv2d(4, 3, 3))
stepped(up, torch.rand(2, 3, 6, 6))
facts["transposed"] = [last(up.layers[0].weight), last(up.seen)]
grey = Sees(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))
stepped(grey, torch.rand(2, 1, 8, 8))
facts["one channel"] = last(grey.seen)
frames = Sees(nn.Flatten(0, 1), nn.Conv2d(3, 4, 3))  # five dimensions in, 2-D convolutions
frames(torch.rand(2, 2, 3, 6, 6))
masks = Sees(nn.Linear(5, 5))
masks(torch.rand(2, 3, 5, 5))
facts["not for convolutions"] = [last(frames.given), last(masks.given)]

class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.table = nn.Conv2d(3, 4, 3), nn.Parameter(torch.zeros(1, 4, 6, 6))
    def forward(self, x):
        return (self.conv(x) + self.table).mean() + self.table.view(-1).sum()

biased = Biased()
biased(torch.rand(2, 3, 8, 8)).backward()
facts["other weights"] = [last(biased.conv.weight), last(biased.table)]

kept = Sees(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
held = kept.layers[0].weight.detach()  # as in a state_dict that the script keeps
stepped(kept, torch.rand(2, 3, 8, 8))
facts["held by the script"] = [
    bool((held == kept.layers[0].weight).all()), last(kept.layers[1].weight)]

def trained(load):
    torch.manual_seed(1)
    net, x = Sees(nn.Conv2d(3, 4, 3)), torch.rand(2, 3, 8, 8)
    optimizer = stepped(net, x)
    if load:
        saved = optimizer.state_dict()
        for state in saved["state"].values():  # as the script without us has saved it
            state.update({k: v.contiguous() for k, v in state.items() if v.dim()})
        optimizer.load_state_dict(saved)
        net.load_state_dict({k: v.contiguous() for k, v in net.state_dict().items()})
    for _ in range(3):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    return net, optimizer

net, optimizer = trained(load=True)
weight = net.layers[0].weight
facts["loaded"] = [last(weight), last(optimizer.state[weight]["exp_avg"])]
facts["loaded, same"] = torch.equal(weight, trained(load=False)[0].layers[0].weight)

class Drops(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, self.drop = conv(3, 4, 3), nn.Dropout(0.4)
    def forward(self, x):
        self.seen = self.conv(x)
        x = self.drop(self.seen)
        return nn.functional.dropout(2 * x, 0.3, self.training, inplace=True)

def dropped(plan, conv, *shape):
    torch.manual_seed(3)
    net, x = Drops(conv), torch.rand(2, 3, *shape)
    pulled.switch(plan)
    out = net(x)
    out.square().sum().backward()
    facts.setdefault("dropped in", []).append(last(net.seen))
    return out, net.conv.weight.grad, torch.get_rng_state()

def alike(own, other):
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in zip(own[:2], other[:2]))
    return close and torch.equal(own[0] == 0, other[0] == 0) and torch.equal(own[2], other[2])

for conv, shape in ((nn.Conv2d, (8, 8)), (nn.Conv3d, (6, 6, 6))):
    own, other = dropped({}, conv, *shape), dropped(PLAN, conv, *shape)
    facts.setdefault("dropped alike", []).append(alike(own, other))
graph = torch.compile(Drops(nn.Conv2d), backend="eager", fullgraph=True)
facts["one graph"] = list(graph(torch.rand(2, 3, 8, 8)).shape)
scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.3)))
facts["scripted"] = list(scripted(torch.rand(2, 3, 8, 8)).shape)

flat, x = Sees(nn.Conv2d(3, 4, 3), flat=True), torch.rand(2, 3, 8, 8)

def flattened(plan):
    pulled.switch(plan)
    flat.zero_grad()
    out = flat(x)
    out.square().sum().backward()
    return out, flat.layers[0].weight.grad.contiguous()

under = flattened(PLAN)
facts["view, laid out"] = last(flat.layers[0].weight)
image = torch.rand(2, 3, 4, 4)
try:
    image.permute(0, 3, 2, 1).view(-1)  # the script's own mistake stays one
except RuntimeError as error:
    facts["own view"] = str(error)
pulled.switch({})
facts["view put back"] = "view" not in vars(torch.Tensor)
back = flattened({})
facts["view"] = [torch.allclose(a, b, atol=1e-5) for a, b in zip(under, back)]
facts["view, back"] = list(back[0].shape)
facts["all back"] = [last(weight), last(video.layers[0].weight),
                     last(moments[video.layers[0].weight]["exp_avg"])]
pulled.switch({})
watch._detach()
"""


@pytest.fixture(scope="module")
def layouts(training):
    return training(PROGRAM)


@pytest.mark.child
def test_weights_gradients_and_moments_are_converted_and_stay_so(layouts) -> None:
    assert layouts["pulled"] == [True] * 4
    assert layouts["after steps"] == [True] * 4


@pytest.mark.child
def test_inputs_are_converted_so_activations_are_too(layouts) -> None:
    assert layouts["activations"]


@pytest.mark.child
def test_everything_is_laid_out_as_before_afterwards(layouts) -> None:
    assert layouts["back"] == [False] * 4


@pytest.mark.child
def test_a_layout_that_the_script_chose_is_left_as_it_is(layouts) -> None:
    assert layouts["own layout"] == [True] * 4


@pytest.mark.child
def test_the_scripts_own_tensors_and_lists_stay_its_own(layouts) -> None:
    assert layouts["image untouched"]
    assert layouts["list written"]
    assert layouts["others"]


@pytest.mark.child
def test_three_dimensional_convolutions_have_a_layout_of_their_own(layouts) -> None:
    assert layouts["3-D"] == [True] * 6


@pytest.mark.child
def test_transposed_convolutions_and_images_of_one_channel_are_taken(layouts) -> None:
    assert layouts["transposed"] == [True, True]
    assert layouts["one channel"]


@pytest.mark.child
def test_only_inputs_and_weights_of_convolutions_are_converted(layouts) -> None:
    assert layouts["not for convolutions"] == [False, False]
    assert layouts["other weights"] == [True, False]


@pytest.mark.child
def test_a_weight_that_the_script_holds_elsewhere_is_left_to_it(layouts) -> None:
    assert layouts["held by the script"] == [True, True]


@pytest.mark.child
def test_moments_that_come_from_a_checkpoint_are_laid_out_as_their_weights(layouts) -> None:
    assert layouts["loaded"] == [True, True]
    assert layouts["loaded, same"]


@pytest.mark.child
def test_a_model_that_views_its_activations_sees_the_same_numbers(layouts) -> None:
    assert layouts["view, laid out"]
    assert layouts["view"] == [True, True]
    assert layouts["view, back"] == [2, 144]
    assert layouts["all back"] == [False] * 3


@pytest.mark.child
def test_a_view_that_torch_refuses_without_the_lever_is_refused_under_it(layouts) -> None:
    assert "view size is not compatible" in layouts["own view"]
    assert layouts["view put back"]


@pytest.mark.child
def test_dropout_drops_the_same_activations_and_draws_as_often(layouts) -> None:
    assert layouts["dropped in"] == [False, True] * 2
    assert layouts["dropped alike"] == [True, True]
    assert layouts["one graph"] == layouts["scripted"] == [2, 4, 6, 6]
