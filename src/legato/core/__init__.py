"""Types, configuration and errors that every other package may import. Standard library only."""
