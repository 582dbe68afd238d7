"""What server and clients share: the method, the data and the model, all from the run's config."""

from functools import cache
from pathlib import Path

import numpy as np
from torch import nn

import stgt
from stgt.checks import check_choice
from stgt.experiments.training.models import make_model
from stgt.experiments.training.spec import Data
from stgt.problems.images import Images, load_images

METHODS = {
    "scaffold-plus": lambda c: stgt.ScaffoldPlus(tau=c["tau"], gamma_g=c["gamma-g"], gamma_c=c["gamma-c"]),
    "scaffold": lambda c: stgt.Scaffold(tau=c["tau"], gamma_g=c["gamma-g"]),
    "fedavg": lambda c: stgt.FedAvg(tau=c["tau"]),
    "fedprox": lambda c: stgt.FedProx(tau=c["tau"], mu_prox=c["mu-prox"]),
    "st-gt": lambda c: stgt.STGT(tau=c["tau"]),
}
MODELS = {"mnist": ("lenet", {}), "cifar10": ("resnet18", {"width": 8})}


def method(config) -> stgt.Algorithm:
    return METHODS[check_choice(config["method"], "method", METHODS)](config)


def path(config, name: str) -> Path | None:
    """A path of the config, None if it was left out."""
    given = Path(config[name])
    if config[name] and not given.is_absolute():
        raise ValueError(f"{name}={config[name]!r}: give an absolute path, Flower runs a copy of the app elsewhere.")
    return given if config[name] else None


def images(config) -> Images:
    return _loaded(config["data"], path(config, "data-dir"))


@cache  # a process of the simulation plays many clients
def _loaded(name: str, folder: Path | None) -> Images:
    return load_images(name, folder)


def parts(config, data: Images) -> list[np.ndarray]:
    """Which of the training images each client holds."""
    spread = Data(name=data.name, partition="label", classes=config["classes"], seed=config["seed"])
    return spread.parts(data.y_train, config["clients"])


def model(config, data: Images) -> nn.Module:
    name, arguments = MODELS[config["data"]]
    return make_model(name, data.x_train.shape, data.classes, **arguments)
