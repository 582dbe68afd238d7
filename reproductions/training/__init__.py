"""Training image classifiers: a spec, what a node does with it, and how the nodes are started."""
