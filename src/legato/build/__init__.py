"""From a model spec to an engine file: lower to a plan, verify it, pack the weights, write, read, dump."""
