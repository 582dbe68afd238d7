"""Studies: spec files, comparisons, run folders, and the report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stgt._internal.progress import Progress, split_progress
    from stgt._internal.statistics import error_interval, mean_interval
    from stgt.simulator.drive import parallel_map
    from stgt.study.comparison import Comparison
    from stgt.study.execution import LostWorkersError, RemoteWorkers, execute
    from stgt.study.plans import KINDS, Batch, Plan, plan
    from stgt.study.result import load_comparison, load_study, write_results
    from stgt.study.run import compare
    from stgt.study.run_folder import Folder, list_folders
    from stgt.study.spec.build import Named
    from stgt.study.spec.load import spec_text
    from stgt.study.spec.runs import BuiltRun, RunSpec, Spec, build_all, build_run, initial_point, load_spec

# Loaded at first use: together they take half a second.
_MODULES = {
    "Batch": "plans",
    "Comparison": "comparison",
    "Folder": "run_folder",
    "KINDS": "plans",
    "LostWorkersError": "execution",
    "BuiltRun": "spec.runs",
    "Named": "spec.build",
    "Plan": "plans",
    "RemoteWorkers": "execution",
    "RunSpec": "spec.runs",
    "Spec": "spec.runs",
    "build_all": "spec.runs",
    "build_run": "spec.runs",
    "compare": "run",
    "execute": "execution",
    "initial_point": "spec.runs",
    "list_folders": "run_folder",
    "load_comparison": "result",
    "load_spec": "spec.runs",
    "load_study": "result",
    "plan": "plans",
    "spec_text": "spec.load",
    "write_results": "result",
}
# Names that lower parts of the package use as well.
_BELOW = {
    "Progress": "stgt._internal.progress",
    "error_interval": "stgt._internal.statistics",
    "mean_interval": "stgt._internal.statistics",
    "parallel_map": "stgt.simulator.drive",
    "split_progress": "stgt._internal.progress",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"stgt.study.{_MODULES[name]}"), name)
    if name in _BELOW:
        return getattr(import_module(_BELOW[name]), name)
    raise AttributeError(f"module 'stgt.study' has no attribute {name!r}")


__all__ = [
    "Batch",
    "Comparison",
    "Folder",
    "KINDS",
    "LostWorkersError",
    "BuiltRun",
    "Named",
    "Plan",
    "Progress",
    "RemoteWorkers",
    "RunSpec",
    "Spec",
    "build_all",
    "build_run",
    "compare",
    "error_interval",
    "execute",
    "initial_point",
    "list_folders",
    "load_comparison",
    "load_spec",
    "load_study",
    "mean_interval",
    "parallel_map",
    "plan",
    "spec_text",
    "split_progress",
    "write_results",
]
