"""A model of the transformers library whose attention is set to eager, on long sequences."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=512, n_embd=128, n_layer=4, n_head=4, attn_implementation="eager"
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    tokens = torch.randint(0, 256, (4, 512))
    optimizer.zero_grad()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
