"""What a Flower user has before: a network, the data of a client, a training loop and a test."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.layers(x)


def load_data(partition, partitions, batch_size):
    """A client's part of the digits, which are sorted by what they show, for training and for testing."""
    images, digits = load_digits(return_X_y=True)
    order = np.argsort(digits, kind="stable")
    mine = np.split(order[: len(order) // partitions * partitions], partitions)[partition]  # all have as many
    mine = np.random.default_rng(partition).permutation(mine)
    parts = mine[: len(mine) * 4 // 5], mine[len(mine) * 4 // 5 :]
    sets = [TensorDataset(torch.tensor(images[i] / 16).float(), torch.tensor(digits[i])) for i in parts]
    draws = torch.Generator().manual_seed(partition)
    return DataLoader(sets[0], batch_size, shuffle=True, generator=draws), DataLoader(sets[1], batch_size)


def train(model, loader, epochs, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    total = 0.0
    for _ in range(epochs):
        for images, digits in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), digits)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(model, loader):
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for images, digits in loader:
            out = model(images)
            loss += nn.functional.cross_entropy(out, digits, reduction="sum").item()
            right += (out.argmax(1) == digits).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)
