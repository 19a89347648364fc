"""One rank of those that play the scenes of `spread.py`: each trains alone, then with the others.

`spread_out.py RANK RANKS PORT [SCENE...]` prints what came of it, as `spread.py` does.
"""

import contextlib
import hashlib
import io
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import spread
import torch
from torch import nn

from hasten.rank import Team
from hasten.root_calls.ranks import gradient_sums, meeting
from hasten.root_calls.ranks.replicated import ReplicatedModel
from hasten.root_calls.ranks.roots import Ranks


class Steep(torch.autograd.Function):
    """The identity, which cannot go back where the loss is too steep."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if bool((grad.abs() > 1e3).any()):
            raise ValueError("too steep")
        return grad


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(Steep.apply(self.first(x)).tanh())


@spread.scene
def stumbling(call):
    """One rank of them fails on the way back, with some of its gradients on their way."""
    net = Fragile()

    def step(call, net, optimizer, batch):
        slopes = torch.ones(len(batch[0]), 1)
        slopes[0] = 1e6 if net.first.bias.sum() > limits.pop() else 1.0
        optimizer.zero_grad()
        loss = (call(net, batch[0]) * slopes).square().mean()
        try:
            loss.backward()
        except Exception:
            return -1.0
        optimizer.step()
        return loss.item()

    limits = [9.0, 9.0, -9.0, 9.0, -9.0, 9.0]  # popped: the second and the fourth step fail
    return net, spread.train(net, spread.rows, call, step)


def main(rank, ranks, port, names):
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    # Several buckets for each of these small models.
    gradient_sums._FIRST_BYTES, gradient_sums._MOST_BYTES = 64, 512
    meeting._BESIDE_BYTES = 256  # some of what they exchange travels with the words
    met = meeting.Meeting(Team(rank, ranks, "127.0.0.1", port), sys.stderr.write, 60.0)
    found = {}
    for name in names or spread.SCENES:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            alone = spread.played(spread.SCENES[name], lambda module, *args: module(*args))
        training, shared = spread.Training(), [0]

        def start(root_call, share, shared=shared):
            shared[0] += 1
            return ReplicatedModel(root_call, share, met)

        detach = Ranks(training, ranks, lambda: None, start=start).attach()
        with contextlib.redirect_stdout(io.StringIO()) as shared_printed:
            seen = spread.played(spread.SCENES[name], training.call)
        detach()
        found[name] = {
            **spread.compared(alone, seen),
            "excused": training.excused,
            "shared": shared[0],
            "weights": hashlib.sha256(bytes(seen[0].view(torch.uint8).tolist())).hexdigest(),
            "printed": printed.getvalue() == shared_printed.getvalue(),
        }
    met.leave()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4:])
