"""Networks for small images: ResNet-18 for CIFAR, LeNet-5 and a perceptron with one hidden layer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import nn
from torch.nn import functional

import stgt


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; `stride` 2 halves height and width in both."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.around = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(inside)) + self.around(x))


@stgt.register
def resnet18(shape: Sequence[int] = (3, 32, 32), classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 (He et al., 2016) for images of 32 × 32: a 3×3 stem with `width` channels and no pooling after it.

    Four stages of two blocks have width, 2·width, 4·width and 8·width channels. With 64 and ten classes it has
    11,173,962 parameters.
    """
    channels, _, _ = _image(shape)
    width = _count(width, "width")
    layers: list[nn.Module] = [_conv(channels, width, 3, 1), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        after = width * 2**stage
        layers += [ResidualBlock(before, after, 1 if stage == 0 else 2), ResidualBlock(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


@stgt.register
def lenet(shape: Sequence[int] = (1, 28, 28), classes: int = 10) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, for square images."""
    channels, height, width = _image(shape)
    if height != width or height < 12:
        raise ValueError(f"images of {height} × {width}: give square ones of at least 12 × 12, or another model.")
    side = (height // 2 - 4) // 2  # halved, minus the border of a 5×5 convolution, halved
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


@stgt.register
def mlp(shape: Sequence[int], classes: int, hidden: int = 128) -> nn.Module:
    """A perceptron: one hidden layer with ReLU."""
    hidden = _count(hidden, "hidden")
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _image(shape: Sequence[int]) -> Sequence[int]:
    if len(shape) != 3:
        raise ValueError(f"samples of shape {tuple(shape)}: give images, (channels, height, width), or another model.")
    return shape


def _count(value: int, name: str) -> int:
    if type(value) is not int or value < 1:
        raise stgt.InputError(name, value, "give a whole number of at least 1.")
    return value


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution that keeps the size (for stride 1), without bias, with He's normal initialisation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
