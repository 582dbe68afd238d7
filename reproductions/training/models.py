"""Networks for small images: ResNet-18 as it is used on CIFAR, LeNet-5 and a perceptron with one hidden layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from stgt._internal.checks import check_choice, check_count


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a way around them; `stride` 2 halves height and width in both ways."""

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


def resnet18(classes: int = 10, width: int = 64, channels: int = 3) -> nn.Sequential:
    """ResNet-18 (He et al., 2016) for images of 32 × 32: a 3×3 stem of `width` channels and no pooling behind it.

    Four stages of two blocks have width, 2·width, 4·width and 8·width channels. With 64 and ten classes it has
    11,173,962 parameters.
    """
    classes, channels = check_count(classes, "classes"), check_count(channels, "channels")
    width = check_count(width, "width")
    layers: list[nn.Module] = [_conv(channels, width, 3, 1), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        after = width * 2**stage
        layers += [ResidualBlock(before, after, 1 if stage == 0 else 2), ResidualBlock(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def lenet(classes: int = 10, channels: int = 1, size: int = 28) -> nn.Sequential:
    """LeNet-5 (LeCun et al., 1998) with ReLU and max-pooling, for square images of `size` × `size`."""
    classes, channels = check_count(classes, "classes"), check_count(channels, "channels")
    side = (check_count(size, "size", 12) // 2 - 4) // 2  # halved, less the rim of a 5×5 convolution, halved
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


def mlp(classes: int, inputs: int, hidden: int = 128) -> nn.Sequential:
    """A perceptron: `inputs` pixels, one hidden layer with ReLU, `classes` outputs."""
    classes, inputs = check_count(classes, "classes"), check_count(inputs, "inputs")
    hidden = check_count(hidden, "hidden")
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


MODELS: dict[str, Callable[..., nn.Module]] = {"resnet18": resnet18, "lenet": lenet, "mlp": mlp}


def make_model(name: str, images_shape: Sequence[int], classes: int, **arguments: Any) -> nn.Module:
    """A model by name for images of this shape, with outputs for `classes` classes.

    Args:
        name: one of `MODELS`.
        images_shape: (channels, height, width), or the shape of an array of such images.
        classes: how many.
        arguments: what else the model takes: `width` of "resnet18", `hidden` of "mlp".
    """
    check_choice(name, "model", MODELS)
    if len(images_shape) < 3:
        raise ValueError(f"images_shape={tuple(images_shape)}: give (channels, height, width).")
    channels, height, width = images_shape[-3:]
    given = {"classes": classes, "channels": channels, "size": height, "inputs": channels * height * width}
    taken = inspect.signature(MODELS[name]).parameters
    if "size" in taken and height != width:
        raise ValueError(f"model={name!r}: images of {height} × {width} are not square; choose another model.")
    free = [argument for argument in taken if argument not in given]
    for argument in arguments:
        if argument not in free:
            raise ValueError(f"model={name!r} has no argument {argument!r}: it takes {', '.join(free) or 'none'}.")
    return MODELS[name](**{key: value for key, value in given.items() if key in taken}, **arguments)


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution that keeps the size (for stride 1), without bias, with He's normal initialisation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
