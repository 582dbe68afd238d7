"""The playground's engine: the library's methods on a quadratic in the plane, in plain Python.

It runs in CPython and, by Pyodide, in a browser. The methods are `stgt.algorithms`. Arithmetic and draws are those of
the library's NumPy engine, so both give the same numbers (tests/playground).
"""
