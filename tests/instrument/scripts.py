"""Small training scripts of many habits; each prints the bits that it ends with."""

HEAD = r"""
import hashlib, os, random, sys, threading, time
import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
X, Y = torch.randn(64, 10), torch.randint(0, 3, (64,))
inner = nn.Sequential(nn.ReLU(), nn.Dropout(0.1))
model = nn.Sequential(nn.Linear(10, 16), inner, nn.Linear(16, 3))
criterion = nn.CrossEntropyLoss()


def loader(**more):
    return DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, **more)


def finish(*modules):
    digest = hashlib.sha256()
    for module in modules or (model,):
        for parameter in module.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr(random.getstate()).encode() + repr(numpy.random.get_state()).encode())
    print("bits", digest.hexdigest())
"""

SCRIPTS = {}

SCRIPTS["plain"] = r"""
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in loader():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
finish()
"""

SCRIPTS["traced"] = r"""
# As TensorBoard's add_graph does: trace, and check that a second trace is the same.
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.eval()
traced = torch.jit.trace(model, X[:4])
print([node.kind() for node in traced.inlined_graph.nodes()])
model.train()
for x, y in loader():
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
finish()
"""

SCRIPTS["scripted"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model = torch.jit.script(model)
for x, y in loader():
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
finish()
"""

SCRIPTS["lazy"] = r"""
# The parameters take shape in the first call, which is a step's own.
model, optimizer = nn.Sequential(nn.LazyLinear(16), inner, nn.LazyLinear(3)), None
for x, y in loader():
    loss = criterion(model(x), y)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
finish()
"""

SCRIPTS["functional loss"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader():
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
finish()
"""

SCRIPTS["accumulation"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for number, (x, y) in enumerate(loader()):
        criterion(model(x), y).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
finish()
"""

SCRIPTS["tokens"] = r"""
text = torch.randint(0, 50, (64, 17))
model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for number, batch in enumerate(DataLoader(text, batch_size=4, shuffle=True)):
        x, y = batch[:, :-1], batch[:, 1:]
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
finish()
"""

SCRIPTS["gan"] = r"""
g, d = nn.Linear(4, 10), nn.Linear(10, 1)
g_optimizer, d_optimizer = (torch.optim.Adam(m.parameters()) for m in (g, d))
for epoch in range(2):
    for x, _ in loader():
        d_optimizer.zero_grad()
        (d(g(torch.randn(4, 4)).detach()).mean() - d(x).mean()).backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        (-d(g(torch.randn(4, 4))).mean()).backward()
        g_optimizer.step()
finish(g, d)
"""

SCRIPTS["by hand"] = r"""
for epoch in range(2):
    for x, y in loader():
        loss = criterion(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
finish()
"""

SCRIPTS["no loader"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(16):
    x = torch.randn(8, 10)
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
finish()
"""

SCRIPTS["lbfgs"] = r"""
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
for x, y in loader():
    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        return loss
    optimizer.step(closure)
finish()
"""

SCRIPTS["evaluation"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    model.train()
    for number, (x, y) in enumerate(loader()):
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        if number == 5:
            break
    model.eval()
    with torch.no_grad():
        for number, (x, y) in enumerate(DataLoader(TensorDataset(X, Y), batch_size=16)):
            loss = criterion(model(x), y)
            time.sleep(0.02)  # metrics
    print(loss.item())
finish()
"""

SCRIPTS["zipped"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (a, y), (b, _) in zip(loader(), loader()):
    optimizer.zero_grad()
    criterion(model((a + b) / 2), y).backward()
    optimizer.step()
finish()
"""

SCRIPTS["saves"] = r"""
import io
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for number, (x, y) in enumerate(loader()):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    if number == 4:
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        print(len(buffer.getvalue()))
finish()
"""

SCRIPTS["transforms"] = r"""
class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.003)
        return x + torch.rand(())

class Transformed(Dataset):
    slow = Slow()
    def __len__(self): return 64
    def __getitem__(self, i): return self.slow(X[i]), Y[i]

optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(Transformed(), batch_size=4):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
finish()
"""

SCRIPTS["recomputation"] = r"""
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(10, 10)
    def forward(self, x):
        time.sleep(0.003)
        return self.inner(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(10, 3)
    def forward(self, x):
        return self.head(checkpoint(self.block, x, use_reentrant=False))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader():
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
finish()
"""

SCRIPTS["background"] = r"""
other, stop, done = nn.Linear(4, 4), threading.Event(), []

def serve():
    x = torch.zeros(2, 4)
    while not stop.is_set():
        with torch.no_grad():
            done.append(other(x).shape)
        time.sleep(0.0005)

thread = threading.Thread(target=serve)
thread.start()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader():
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
    time.sleep(0.002)
stop.set()
thread.join()
print(len(done) > 0)
finish(model, other)
"""

SCRIPTS["in a thread"] = r"""
def train():
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

thread = threading.Thread(target=train)
thread.start()
thread.join()
finish()
"""

SCRIPTS["fork"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def train(x, y):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()

for number, (x, y) in enumerate(loader()):
    train(x, y)
    if number == 3:
        pid = os.fork()
        if not pid:
            for _ in range(3):
                train(x, y)
            seams = (nn.Module.__call__, torch.save, torch.autograd.backward)
            os._exit(int(any("hasten" in seam.__code__.co_filename for seam in seams)))
        print("child", os.waitpid(pid, 0)[1])
finish()
"""

WORKERS = r"""
class Rows(Dataset):
    def __len__(self): return 24
    def __getitem__(self, i): return X[i], Y[i]

def main():
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=1, {more})
    for epoch in range(2):
        for x, y in rows:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    finish()

if __name__ == "__main__":
    main()
"""
SCRIPTS["fork workers"] = WORKERS.replace("{more}", "multiprocessing_context='fork'")
SCRIPTS["spawn workers"] = WORKERS.replace("{more}", "multiprocessing_context='spawn'")
SCRIPTS["kept workers"] = WORKERS.replace("{more}", "persistent_workers=True")

SCRIPTS["mishap"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def closure():
    raise ArithmeticError

for number, (x, y) in enumerate(loader()):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    try:
        optimizer.step(closure if number == 3 else None)
    except ArithmeticError:
        print("went on")
finish()
"""

SCRIPTS["compiled"] = r"""
from torch._dynamo.utils import counters

def count(name, act):
    torch._dynamo.reset()
    counters.clear()
    net = nn.Sequential(nn.Linear(10, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    compute = act(net)
    for x, y in loader():
        optimizer.zero_grad()
        compute(x, y).backward()
        optimizer.step()
    breaks = sum(counters["graph_break"].values())
    print(name, counters["stats"]["unique_graphs"], breaks)
    finish(net)

def compiled_model(net):
    fast = torch.compile(net, backend="aot_eager")
    return lambda x, y: criterion(fast(x), y)

def compiled_step(net):
    @torch.compile(backend="aot_eager")
    def compute(x, y):
        return F.cross_entropy(net(x), y)
    return compute

def compiled_in_place(net):
    net.compile(backend="aot_eager")
    return lambda x, y: criterion(net(x), y)

def broken_graph(net):
    @torch.compile(backend="aot_eager")
    def compute(x, y):
        h = net[0](x)
        torch._dynamo.graph_break()
        return F.cross_entropy(net[1](h), y)
    return compute

class Breaking(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        h = self.net[0](x)
        torch._dynamo.graph_break()
        return self.net[1](h)

def broken_module(net):
    whole = Breaking(net)

    @torch.compile(backend="aot_eager")
    def compute(x, y):
        return F.cross_entropy(whole(x), y)
    return compute

def own_module_in_place(net):
    whole = Breaking(net)
    whole.compile(backend="aot_eager")
    return lambda x, y: criterion(whole(x), y)

for act in (
    broken_module, own_module_in_place, compiled_model, compiled_step, compiled_in_place,
    broken_graph,
):
    count(act.__name__, act)
"""

SCRIPTS["timed"] = r"""
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ends = []
for x, y in loader():
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    time.sleep(0.004)
    optimizer.step()
    ends.append(time.perf_counter_ns())
print("ends", *ends)
"""
