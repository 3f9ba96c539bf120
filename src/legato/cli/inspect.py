"""`legato inspect`: what a model was turned into, and how this machine would run it."""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from legato.cli.flags import Commands, add_command, add_flags, read
from legato.core.config import EngineConfig

if TYPE_CHECKING:
    from legato.build.engine_file import EngineFile
    from legato.build.plan import Plan

__all__ = ["add_to"]

# What changes neither the file nor how much memory it takes.
_NO_USE = (
    *("served_model_name", "executor", "seed", "policy", "static_padding", "long_prefill_token_threshold"),
    *("priority_ageing_s", "tenant_weights"),
    *("max_step_ms", "max_num_queued_reqs", "max_num_queued_tokens", "enable_prefix_caching"),
)

# Layout ids of csrc/kernels/pack.h; tables and vectors are rows as they are.
_LAYOUTS = ("rows", "f32_panel", "f16_panel", "bf16_panel", "i8_panel", "i8_grouped", "q4_grouped", "i4_panel")


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "inspect", "show a model's plan, layouts, memory and instruction set", _run)
    parser.add_argument("--verify", action="store_true", help="check the hash of every tensor in the engine file")
    add_flags(parser, EngineConfig, without=_NO_USE)


def _run(args: argparse.Namespace) -> int:
    from legato.build.dump import dump
    from legato.engine.start import engine_file, memory_table
    from legato.executor.native import NativeExecutor, isa_levels

    config = read(EngineConfig, args)
    file = engine_file(config.model)
    if args.verify:
        file.verify()
    print(dump(file.plan))
    print("\n".join(_fusions(file.plan)))
    print("\n".join(_layouts(file)))
    native = NativeExecutor.open(file, cache=config.cache, scheduler=config.scheduler, threads=config.threads)
    details = native.info().details
    print("\n".join(_levels(isa_levels(), details["isa"])))
    print(memory_table(native.memory))
    native.close()
    print("\n".join(_summary(file, details)))
    if args.verify:
        print(f"verified: the hashes of {len(file.tensors)} tensors are right")
    return 0


def _fusions(plan: "Plan") -> Iterator[str]:
    """What one op does where the model's definition has several."""
    formats = {buffer.name: buffer.format for buffer in plan.buffers}
    counts: Counter[str] = Counter()
    for tensor in plan.tensors:
        if len(tensor.sources) > 1:
            joined = " / " if tensor.interleave else " + "
            counts["matrix of " + joined.join(source.split(".")[-2] for source in tensor.sources)] += 1
    for op in plan.ops:
        epilogue = getattr(op, "epilogue", "store")
        if epilogue == "add":
            counts["linear + residual add"] += 1
        if epilogue == "glu":
            counts[f"linear + {getattr(op, 'act', '')}(gate) x up"] += 1
        if op.kind == "heads_to_cache":
            counts["split + rope + KV write"] += 1
        for name in op.named(op.writes):
            if formats[name].startswith("s8"):
                counts[f"{op.kind} + quantization to {formats[name]}"] += 1
    yield "fused"
    yield from (f"  {count:4} x {what}" for what, count in counts.items())


def _layouts(file: "EngineFile") -> Iterator[str]:
    """Tensors and bytes per packed layout."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor, record in zip(file.plan.tensors, file.tensors, strict=True):
        layout = f"{_LAYOUTS[record.layout]} ({tensor.kind}, {tensor.format})"
        counts[layout] += 1
        sizes[layout] += record.size
    yield "layouts"
    yield from (f"  {layout:32} {counts[layout]:5} tensors {size / 1e6:10.2f} MB" for layout, size in sizes.items())


def _levels(levels: "dict[str, str | None]", chosen: str) -> Iterator[str]:
    yield "instruction set"
    state = "usable, below the chosen one"
    for name, obstacle in levels.items():
        yield f"  {name:12} {obstacle or ('chosen' if name == chosen else state)}"
        if name == chosen:
            forced = os.environ.get("LEGATO_ISA")
            state = "usable, but LEGATO_ISA asks for a lower one" if forced else "usable, but slower on this CPU"


def _summary(file: "EngineFile", details: "Mapping[str, str]") -> Iterator[str]:
    yield f"model        {file.meta['model']} ({file.plan.architecture}), format {file.meta['format']}"
    yield f"engine file  {file.path}, {file.path.stat().st_size / 1e6:.1f} MB, by legato {file.meta['legato']}"
    yield f"runs with    KV cache {details['kv_cache_dtype']}, {details['threads']} threads"
