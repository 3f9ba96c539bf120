"""Helpers for tests: an executor that follows a script, a loop that drives it, and the oracles of the project."""
