"""Whether the runs of a spec can be trained, as far as one process can know it before they start."""

from __future__ import annotations

from collections.abc import Mapping

from reproductions.images import Images
from reproductions.training.models import make_model
from stgt.study.spec import build_algorithm, build_topology
from stgt.study.spec.training import Training, TrainingSpec
from stgt.torch import validate
from stgt.torch.train.node_training import make_optimizer


def check_ready(runs: TrainingSpec, nodes: int, images: Mapping[str, Images]) -> None:
    """A ValueError says what is wrong with a run: its graph, method, model, optimiser, data, or how they fit together.

    Args:
        runs: the spec.
        nodes: how many processes are to train it.
        images: its data sets, by name.
    """
    for run in runs.runs:
        try:
            _check(run, nodes, images[run.data.name])
        except (ValueError, RuntimeError) as error:  # torch's own refusals are RuntimeErrors
            words = str(error).splitlines()[0] if isinstance(error, RuntimeError) else str(error)
            whose = f"run {run.name!r}: " if len(runs.runs) > 1 else ""
            raise ValueError(f"{whose}{words}") from None


def _check(run: Training, nodes: int, images: Images) -> None:
    topology = validate.topology_of(build_topology(run.topology.model_dump(), nodes), nodes)
    algorithm = validate.usable(build_algorithm(run.algorithm), topology)
    run.data.parts(images.y_train, nodes)
    model = make_model(run.model.name, images.x_train.shape, images.classes, **run.model.arguments)
    optimizer = make_optimizer(run, model)
    validate.check_optimizer(optimizer)
    validate.check_divided(algorithm, optimizer)
    validate.check_sending(algorithm, topology, optimizer, run.message_dtype, run.early)
