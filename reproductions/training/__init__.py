"""Training image classifiers: the runs, the code of a node, and the start of the processes."""
