"""Decides what each step computes. Pure Python on integers: it sees neither tensors nor text."""
