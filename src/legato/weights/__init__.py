"""Checkpoints on disk: safetensors and GGUF readers behind one protocol, and the download of the default model."""
