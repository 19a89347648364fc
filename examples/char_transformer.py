"""Train a character transformer on the source text of Python's own standard library."""

import argparse
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn


def read_text(limit):
    """Read the modules of the standard library in the order of their names, up to a limit."""
    pieces, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        pieces.append(path.read_text(encoding="utf-8", errors="ignore"))
        size += len(pieces[-1])
        if size >= limit:
            break
    return "".join(c for c in "".join(pieces)[:limit] if c.isascii())


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return nn.functional.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, characters, *, length, width, heads, layers, dropout):
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        logits = self.head(self.norm(self.blocks(x)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data, batch_size, length):
    starts = torch.randint(len(data) - length - 1, (batch_size,)).tolist()
    x = torch.stack([data[i : i + length] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + length] for i in starts])
    return x, y


@torch.no_grad()
def estimate_loss(model, data, batch_size, length, batches=10):
    model.eval()
    losses = [model(*get_batch(data, batch_size, length)).item() for _ in range(batches)]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5, help="epochs of --iterations each")
    parser.add_argument("--iterations", type=int, default=100, help="between two evaluations")
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    text = read_text(1_000_000)
    characters = sorted(set(text))
    codes = {c: i for i, c in enumerate(characters)}
    data = torch.tensor([codes[c] for c in text])
    cut = len(data) * 9 // 10
    train_data, valid_data = data[:cut], data[cut:]

    model = Transformer(
        len(characters),
        length=args.length,
        width=args.width,
        heads=args.heads,
        layers=args.layers,
        dropout=0.1,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} characters")
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        total = 0.0
        for _ in range(args.iterations):
            loss = model(*get_batch(train_data, args.batch_size, args.length))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        step_ms = (time.perf_counter() - start) / args.iterations * 1000
        valid = estimate_loss(model, valid_data, args.batch_size, args.length)
        loss = total / args.iterations
        print(f"epoch {epoch}  loss {loss:.4f}  validation {valid:.4f}  {step_ms:.0f} ms a step")


if __name__ == "__main__":
    main()
