"""Specs that are right, the files that they name, and values that their entries cannot have."""

from __future__ import annotations

from pathlib import Path

CSV = "age,dose,site,ill\n" + "".join(
    f"{20 + i},{(7 * i) % 5}.5,{i % 4},{'yes' if i % 3 else 'no'}\n" for i in range(24)
)
EDGES = "u,v\n0,1\n1,2\n2,3\n3,0\n"
ONE = """\
rounds = 9
seeds = 2
every = 3
target = 0.5
x0 = "zero"
engine = "numpy"
dtype = "float64"
metrics = ["residual", "loss"]
by = "residual"
[algorithm]
name = "STGT"
gamma = 0.1
tau = 2
[problem]
name = "logistic"
data = "own.csv"
label = "ill"
standardise = true
n = 4
partition = "iid"
l2 = 0.1
[oracle]
name = "Minibatch"
batch = 2
[topology]
name = "from_edges"
edges = "graph.csv"
[network]
latency = 0.1
"""
SEVERAL = """\
rounds = 9
[problem]
name = "ridge"
n = 4
p = 2
[topology]
name = "ring"
[algorithm]
tau = 3
[grid]
gamma = [0.1, 0.2]
[[runs]]
algorithm = {name = "STGT"}
[[runs]]
algorithm = {name = "DPSGD"}
label = "second"
"""
TABLES = ["algorithm", "problem", "topology", "oracle", "network"]
WRONG = {
    "rounds": ["'many'", "true", "1.5", "[3]", "{a = 1}", "1979-05-27", "'9'"],
    "seeds": ["'two'", "false", "2.0", "[0.5]", "{a = 1}", "07:32:00", "['0']", "[[1]]"],
    "every": ["'often'", "true", "0.5", "[]", "{}"],
    "target": ["'small'", "true", "[0.1]", "{a = 1}", "1979-05-27T07:32:00Z"],
    "label": ["3", "true", "['a']", "{a = 1}"],
    "metrics": ["'loss'", "3", "true", "{loss = 1}", "[3]", "[['loss']]"],
    "algorithm.tau": ["'two'", "true", "2.5", "[2]", "{a = 1}"],
    "algorithm.gamma": ["'small'", "true", "[0.1, 0.2]", "{a = 1}"],
    "algorithm.adjoint": ["'yes'", "1", "0.5", "[true]"],
    "problem.l2": ["'none'", "true", "[1]", "{a = 1}"],
    "problem.n": ["'four'", "true", "4.5", "[4]"],
    "problem.standardise": ["'yes'", "1", "[true]"],
    "problem.partition": ["3", "true", "0.5", "[[0, 1], []]", "[['a']]", "[[0], [99]]"],
    "problem.data": ["3", "true", "['own.csv']", "{path = 'own.csv'}"],
    "problem.seed": ["'x'", "1.5", "true"],
    "oracle.batch": ["'all'", "true", "2.5", "[2]"],
    "topology.edges": ["3", "true", "[3]", "[[0]]", "[[0, 1], [1]]", "['ab']", "[[0, 'b']]"],
    "network.latency": ["'slow'", "true", "[1]"],
    "by": ["3", "['loss']"],
    "grid.gamma": ["0.1", "'small'", "true", "['small']", "[{a = 1}]"],
}


def valid(folder: Path) -> list[Path]:
    """The specs that the mistakes are made in, with their files."""
    (folder / "own.csv").write_text(CSV)
    (folder / "graph.csv").write_text(EDGES)
    (folder / "loop.csv").write_text(EDGES + "2,2\n")
    (folder / "apart.csv").write_text("0,1\n2,3\n")
    (folder / "far.csv").write_text(EDGES + "3,9\n")
    (folder / "words.csv").write_text("a,b\nb,c\n")
    (folder / "hole.csv").write_text(CSV.replace("25,", ",", 1))
    (folder / "text.csv").write_text(CSV.replace("25,", "old,", 1))
    (folder / "short.csv").write_text(CSV.replace("25,", "", 1))
    (folder / "nan.csv").write_text(CSV.replace("25,", "inf,", 1))
    (folder / "three.csv").write_text(CSV.replace(",yes", ",perhaps", 1))
    (folder / "empty.csv").write_text("")
    (folder / "broken.npz").write_bytes(b"PK\x03\x04 not a zip file")
    (folder / "broken.svm").write_text("yes no\n")
    (folder / "folder.csv").mkdir()
    paths = [folder / "one.toml", folder / "several.toml"]
    for path, text in zip(paths, (ONE, SEVERAL), strict=True):
        path.write_text(text)
    return paths
