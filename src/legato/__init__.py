"""Legato, a serving engine for large language models. Names load on first use: `import legato` is free."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from legato.core.grammar import StructuredOutputsParams
    from legato.core.types import BeamSearchParams, SamplingParams
    from legato.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "BeamSearchParams", "SamplingParams", "StructuredOutputsParams", "__version__"]

_LAZY = {
    "BeamSearchParams": "legato.core.types",
    "LLM": "legato.engine.llm",
    "SamplingParams": "legato.core.types",
    "StructuredOutputsParams": "legato.core.grammar",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'legato' has no attribute {name!r}")
