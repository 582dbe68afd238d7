"""The startup time: imports, and the first round of a ridge simulation in a new process.

python benchmarks/startup.py
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

FIRST_ROUND = """
import stgt
problem, graph = stgt.problems.ridge(n=32, p=10), stgt.topology.exponential(32)
stgt.simulate(stgt.STGT(gamma=0.4, tau=50), problem, graph, rounds=1)
"""


def seconds(code: str, repeats: int = 5, **environment: str) -> float:
    """The median time of a new Python process that runs the code."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | environment)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    seconds("import stgt, numpy", 1)  # fills the machine's cache of files
    empty = seconds("pass")
    numpy = seconds("import numpy") - empty
    print(f"import numpy                               {numpy:.3f} s")
    library = seconds("import stgt") - empty
    print(f"import stgt                                {library:.3f} s, {library / numpy:.2f} times numpy's")
    print(f"first round, nothing compiled before       {seconds(FIRST_ROUND, 3, STGT_CACHE=''):.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        seconds(FIRST_ROUND, 1, STGT_CACHE=folder)
        print(f"first round, from the second process on    {seconds(FIRST_ROUND, 3, STGT_CACHE=folder):.2f} s")


if __name__ == "__main__":
    main()
