"""Text to token ids and back: assets of a checkpoint, encoding, incremental decoding, stop strings."""
