"""Training from a spec file: `stgt train`, and `torchrun -m stgt.torch.train` on several machines.

You register a model or a data set by name with `stgt.register`: see docs/training.md.
"""

from stgt.study.spec.training import LabelledData, Training, TrainingSpec, load_training
from stgt.torch.train.data import Batches
from stgt.torch.train.launcher import StoppedTrainingError, launch
from stgt.torch.train.node_training import as_tensors, build_model, build_optimizer, evaluate
from stgt.torch.train.run_folder import create_run_folder, curve_panels

__all__ = [
    "Batches",
    "LabelledData",
    "StoppedTrainingError",
    "Training",
    "TrainingSpec",
    "as_tensors",
    "build_model",
    "build_optimizer",
    "create_run_folder",
    "curve_panels",
    "evaluate",
    "launch",
    "load_training",
]
