"""Policy gradients on a pendulum that is simulated in plain Python: nothing to win."""

import math
import sys

import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)


def simulate(angle: float, speed: float, push: int) -> tuple[float, float]:
    for _ in range(200):
        speed += 0.0005 * (9.81 * math.sin(angle) + 4 * push - 2 - 0.1 * speed)
        angle += 0.0005 * speed
    return angle, speed


for epoch in range(int(sys.argv[1])):
    total = 0.0
    for episode in range(20):
        states, pushes, rewards = [], [], []
        angle, speed = 0.05 * (episode - 9.5), 0.0
        for move in range(1_000):
            if move % 100 == 0:
                states.append([angle, speed])
                with torch.no_grad():
                    logits = policy(torch.tensor(states[-1]))
                pushes.append(int(torch.distributions.Categorical(logits=logits).sample()))
            if move % 2 == 0:
                angle, speed = simulate(angle, speed, pushes[-1])
            rewards.append(math.cos(angle))
        chosen = torch.distributions.Categorical(logits=policy(torch.tensor(states)))
        loss = -chosen.log_prob(torch.tensor(pushes)).mean() * sum(rewards) / len(rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += sum(rewards) / len(rewards)
    print(epoch, total / 20)
