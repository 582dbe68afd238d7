"""Code of both server and clients: the method, the data and the model, all from the run's config.

The digits need nothing else. MNIST and CIFAR-10 are read by `reproductions/` of a clone: add the clone to PYTHONPATH.
"""

from functools import cache
from math import prod
from pathlib import Path

import numpy as np
from torch import nn

import stgt
from stgt.problems import partition
from stgt.torch.train import LabelledData

METHODS = {
    "scaffold-plus": lambda c: stgt.ScaffoldPlus(tau=c["tau"], gamma_g=c["gamma-g"], gamma_c=c["gamma-c"]),
    "scaffold": lambda c: stgt.Scaffold(tau=c["tau"], gamma_g=c["gamma-g"]),
    "fedavg": lambda c: stgt.FedAvg(tau=c["tau"]),
    "fedprox": lambda c: stgt.FedProx(tau=c["tau"], mu_prox=c["mu-prox"]),
    "st-gt": lambda c: stgt.STGT(tau=c["tau"]),
}
DATA = ("digits", "mnist", "cifar10")


def method(config) -> stgt.Algorithm:
    return METHODS[_choice(config, "method", METHODS)](config)


def _choice(config, name: str, allowed) -> str:
    if config[name] not in allowed:
        raise stgt.InputError(name, config[name], f"choose from {', '.join(map(repr, allowed))}.")
    return config[name]


def path(config, name: str) -> Path | None:
    """A path from a config; None if it was left out."""
    given = config.get(name, "")
    if given and not Path(given).is_absolute():
        raise ValueError(f"{name}={given!r}: give an absolute path, Flower runs a copy of the app elsewhere.")
    return Path(given) if given else None


def images(config, folder: Path | None) -> LabelledData:
    """The data of the config; "digits" comes with scikit-learn, the others are in a folder."""
    return _loaded(_choice(config, "data", DATA), folder)


@cache  # one process of the simulation runs many clients
def _loaded(name: str, folder: Path | None) -> LabelledData:
    if name != "digits":
        from reproductions.images import load_images

        return load_images(name, folder)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels, test = pixels.astype(np.uint8).reshape(-1, 1, 8, 8), np.arange(len(labels)) % 5 == 0
    return LabelledData(pixels[~test], labels[~test], pixels[test], labels[test], classes=10, deviation=16)


def parts(config, data: LabelledData, clients: int) -> list[np.ndarray]:
    """The training images that each client holds: two labels of ten, or more if there are few clients."""
    classes = config["classes"] or max(2, -(-data.classes // clients))
    return partition(data.y_train, clients, "label", classes=classes, seed=config["seed"])


def model(config, data: LabelledData) -> nn.Module:
    if config["data"] == "digits":
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(data.shape), 64), nn.ReLU(), nn.Linear(64, data.classes))
    from reproductions.training.models import lenet, resnet18

    return lenet(data.shape, 10) if config["data"] == "mnist" else resnet18(data.shape, 10, width=8)
