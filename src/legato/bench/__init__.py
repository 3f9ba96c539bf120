"""Benchmarks that tell the truth: standard workloads, metric definitions by name, spread beside every figure."""
