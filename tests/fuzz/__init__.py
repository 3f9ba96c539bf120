"""Fuzzers of the readers of files that we did not write. Run one with `python -m fuzz.NAME --seconds 600`."""
