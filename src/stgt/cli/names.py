"""`list`: what there is by name."""

from __future__ import annotations

from stgt.cli.common import Imports, app, console, import_scripts


@app.command(name="list")
def list_names(scripts: Imports = None) -> None:
    """Name the algorithms, topologies and problems there are.

    Examples:
        stgt list
        stgt list --import my_methods.py
    """
    from stgt.algorithms import list_algorithms
    from stgt.problems import list_problems
    from stgt.topology import list_topologies

    import_scripts(scripts)
    console.print("algorithms:", ", ".join(list_algorithms()))
    console.print("topologies:", ", ".join(list_topologies()))
    console.print("problems:", ", ".join(list_problems()))
