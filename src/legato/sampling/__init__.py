"""Sampling parameters, the counter-based generator, and the reference sampler."""
