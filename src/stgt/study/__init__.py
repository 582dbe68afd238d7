"""Studies: spec files, comparisons, runs that are kept in a folder, and the page that shows them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stgt._internal.progress import Progress, split_progress
    from stgt._internal.statistics import error_interval, mean_interval
    from stgt.simulator.drive import parallel_map
    from stgt.study.comparison import Comparison, compare
    from stgt.study.execution import Elsewhere, LostWorkersError, execute
    from stgt.study.plans import KINDS, Batch, Plan, plan
    from stgt.study.result import load_comparison, load_study, write_results
    from stgt.study.run_folder import Folder, list_folders
    from stgt.study.spec.build import Named
    from stgt.study.spec.initial_point import initial_point
    from stgt.study.spec.load import spec_text
    from stgt.study.spec.runs import Made, RunSpec, Spec, load_spec, make, make_all

# Loaded when they are first asked for: all of them take half a second.
_MODULES = {
    "Batch": "plans",
    "Comparison": "comparison",
    "Elsewhere": "execution",
    "Folder": "run_folder",
    "KINDS": "plans",
    "LostWorkersError": "execution",
    "Made": "spec.runs",
    "Named": "spec.build",
    "Plan": "plans",
    "RunSpec": "spec.runs",
    "Spec": "spec.runs",
    "compare": "comparison",
    "execute": "execution",
    "initial_point": "spec.initial_point",
    "list_folders": "run_folder",
    "load_comparison": "result",
    "load_spec": "spec.runs",
    "load_study": "result",
    "make": "spec.runs",
    "make_all": "spec.runs",
    "plan": "plans",
    "spec_text": "spec.load",
    "write_results": "result",
}
# What lower parts use as well.
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
    "Elsewhere",
    "Folder",
    "KINDS",
    "LostWorkersError",
    "Made",
    "Named",
    "Plan",
    "Progress",
    "RunSpec",
    "Spec",
    "compare",
    "error_interval",
    "execute",
    "initial_point",
    "list_folders",
    "load_comparison",
    "load_spec",
    "load_study",
    "make",
    "make_all",
    "mean_interval",
    "parallel_map",
    "plan",
    "spec_text",
    "split_progress",
    "write_results",
]
