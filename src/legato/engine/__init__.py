"""The engine: one thread that owns scheduler, executor and renderer, and the client that is its only door."""
