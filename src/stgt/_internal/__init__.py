"""Private parts that all others use: checks, files, random numbers, array operations, progress."""
