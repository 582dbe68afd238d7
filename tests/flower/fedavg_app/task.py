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


def load_data(partition, partitions):
    """A client's part of the digits, which are sorted by what they show, for training and for testing."""
    images, digits = load_digits(return_X_y=True)
    mine = np.array_split(np.argsort(digits, kind="stable"), partitions)[partition]
    mine = np.random.default_rng(partition).permutation(mine)
    parts = mine[: len(mine) * 4 // 5], mine[len(mine) * 4 // 5 :]
    sets = [TensorDataset(torch.tensor(images[i] / 16).float(), torch.tensor(digits[i])) for i in parts]
    return DataLoader(sets[0], batch_size=16, shuffle=True), DataLoader(sets[1], batch_size=64)


def train(model, loader, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for images, digits in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), digits).backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == digits).sum().item() for images, digits in loader)
    return {"accuracy": right / len(loader.dataset)}
