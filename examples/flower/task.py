"""What server and clients share: the method, the data and the model, all from the run's config."""

from functools import cache, partial
from pathlib import Path

import numpy as np
from torch import nn

import stgt
from reproductions.images import load_images
from reproductions.options import check_choice
from reproductions.training.models import lenet, mlp, resnet18
from stgt.problems import partition
from stgt.torch.train import LabelledData

METHODS = {
    "scaffold-plus": lambda c: stgt.ScaffoldPlus(tau=c["tau"], gamma_g=c["gamma-g"], gamma_c=c["gamma-c"]),
    "scaffold": lambda c: stgt.Scaffold(tau=c["tau"], gamma_g=c["gamma-g"]),
    "fedavg": lambda c: stgt.FedAvg(tau=c["tau"]),
    "fedprox": lambda c: stgt.FedProx(tau=c["tau"], mu_prox=c["mu-prox"]),
    "st-gt": lambda c: stgt.STGT(tau=c["tau"]),
}
MODELS = {"digits": partial(mlp, hidden=64), "mnist": lenet, "cifar10": partial(resnet18, width=8)}


def method(config) -> stgt.Algorithm:
    return METHODS[check_choice(config["method"], "method", METHODS)](config)


def path(config, name: str) -> Path | None:
    """A path of a config, None if it was left out."""
    given = config.get(name, "")
    if given and not Path(given).is_absolute():
        raise ValueError(f"{name}={given!r}: give an absolute path, Flower runs a copy of the app elsewhere.")
    return Path(given) if given else None


def images(config, folder: Path | None) -> LabelledData:
    """The data of the config; "digits" comes with scikit-learn, the others lie in a folder."""
    return _loaded(check_choice(config["data"], "data", MODELS), folder)


@cache  # a process of the simulation plays many clients
def _loaded(name: str, folder: Path | None) -> LabelledData:
    if name != "digits":
        return load_images(name, folder)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    pixels, test = pixels.astype(np.uint8).reshape(-1, 1, 8, 8), np.arange(len(labels)) % 5 == 0
    return LabelledData(pixels[~test], labels[~test], pixels[test], labels[test], classes=10, deviation=16)


def parts(config, data: LabelledData, clients: int) -> list[np.ndarray]:
    """Which of the training images each client holds: two labels of ten, or more if there are few clients."""
    classes = config["classes"] or max(2, -(-data.classes // clients))
    return partition(data.y_train, clients, "label", classes=classes, seed=config["seed"])


def model(config, data: LabelledData) -> nn.Module:
    return MODELS[config["data"]](data.shape, data.classes)
