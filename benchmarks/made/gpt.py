"""A small transformer on characters."""

import sys

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width=96, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        count, length, width = x.shape
        parts = self.qkv(self.before(x)).view(count, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(count, length, width))
        return x + self.mlp(self.between(x))


torch.manual_seed(0)
text = torch.randint(65, (50_000,))
model = nn.Sequential(nn.Embedding(65, 96), Block(), Block(), Block(), nn.Linear(96, 65))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(int(sys.argv[1])):
    for _ in range(60):
        at = torch.randint(len(text) - 65, (16,)).tolist()
        read = torch.stack([text[i : i + 64] for i in at])
        wanted = torch.stack([text[i + 1 : i + 65] for i in at])
        loss = functional.cross_entropy(model(read).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
