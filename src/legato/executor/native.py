"""The native executor: an engine file run by the C++ plan runner. This file only converts."""

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

import legato._native as _native
from legato.build.engine_file import EngineFile
from legato.build.plan import Plan
from legato.core.config import CacheConfig, SchedulerConfig
from legato.core.errors import CheckpointError, ConfigError
from legato.core.threads import no_more_threads
from legato.core.types import ExecutorInfo, StepPlan, StepResult
from legato.executor.again import with_rows
from legato.executor.disk_tier import DiskTier
from legato.executor.memory import MemoryBudget, budget, default_threads

__all__ = ["NativeExecutor", "enough_threads", "isa_levels"]

_PHASES = ("prepare", "forward", "sample")


class NativeExecutor:
    """An `Executor` over one engine file. One step is in flight at a time; `launch` returns at once.

    memory: how the memory was divided, to be printed at start.
    """

    def __init__(
        self, runtime: _native.Runtime, info: ExecutorInfo, memory: MemoryBudget, disk: DiskTier | None
    ) -> None:
        self._runtime: _native.Runtime | None = runtime
        self._info = info
        self._disk = disk
        self._lost_copies: tuple[int, ...] = ()
        self.memory = memory

    @classmethod
    def open(
        cls,
        file: EngineFile,
        *,
        cache: CacheConfig,
        scheduler: SchedulerConfig,
        threads: int | None = None,
        isa: str | None = None,
        offload_dir: Path | None = None,
    ) -> "NativeExecutor":
        """Loads an engine file.

        offload_dir: folder of the file that evicted blocks go to, where the cache's configuration asks for one.
        isa: instruction-set level; default: $LEGATO_ISA, else the best one that this machine runs. CheckpointError
        names a file that cannot be used, ConfigError a setting that cannot.
        """
        plan, path = file.plan, os.fspath(file.path)
        threads = threads or default_threads()
        kv_dtype = _kv_dtype(cache.kv_cache_dtype, plan)
        max_rows, max_seqs = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
        try:
            mapped = _native.EngineFile.open(path)

            def options(num_blocks: int) -> _native.RuntimeOptions:
                return _native.RuntimeOptions.make(
                    isa=isa or os.environ.get("LEGATO_ISA", ""),
                    kv_dtype=kv_dtype,
                    block_size=cache.block_size,
                    num_blocks=num_blocks,
                    max_rows=max_rows,
                    max_seqs=max_seqs,
                    max_position=plan.max_position,
                    threads=threads,
                    prefault_kv=cache.prefault_kv,
                )

            need = mapped.memory(options(1))
            block_bytes = need.pop("bytes_per_block")
            memory = budget(need, sum(block_bytes), cache, max_seqs=max_seqs, max_position=plan.max_position)
            chosen = options(memory.num_blocks)
            with enough_threads(threads):
                runtime = _native.Runtime(mapped, chosen)
        except _native.EngineFileError as error:
            raise CheckpointError(str(error)) from error
        except (ValueError, MemoryError) as error:
            raise ConfigError(str(error) or "not enough memory for the KV pool") from error
        details = {
            "isa": chosen.isa,
            "weights": ", ".join(sorted(_formats(plan))),
            "kv_cache_dtype": kv_dtype,
            "threads": str(threads),
            "engine_file": path,
        }
        kernels = hashlib.sha256(Path(_native.__file__).read_bytes()).hexdigest()
        identity = {"engine": file.digest(), "kernels": kernels, "isa": chosen.isa, "kv_cache_dtype": kv_dtype}
        disk = DiskTier.open(cache, offload_dir, identity, block_bytes)
        info = _info(plan, memory, block_bytes, scheduler, details)
        return cls(runtime, info if disk is None else disk.told_by(info), memory, disk)

    def info(self) -> ExecutorInfo:
        return self._info

    def launch(self, plan: StepPlan) -> None:
        """Checks and starts the step. ValueError names the column that is wrong; nothing has been computed then."""
        runtime = self._open_runtime()
        self._lost_copies = ()
        if self._disk is not None and plan.copies:
            self._lost_copies = self._disk.copy(plan.copies, runtime)
            plan = replace(plan, copies=())
        runtime.launch(plan)

    def collect(self, step_id: int) -> StepResult:
        """Waits for the step. RuntimeError where it failed as a whole, or was not launched."""
        out = self._open_runtime().collect(step_id)
        return StepResult(
            step_id=step_id,
            tokens=array("i", out["tokens"]),
            logprobs=array("f", out["logprobs"]),
            top_logprobs=out["top_logprobs"],
            faults=array("b", out["faults"]),
            lost_copies=self._lost_copies,
            times_ms=dict(zip(_PHASES, out["times_ms"], strict=True)),
        )

    def sample_again(self, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult:
        """ValueError for a row that has counted its first token: one with penalties or bad words."""
        runtime = self._open_runtime()
        first = len(plan.out_rows) - runtime.num_kept_logits()
        kept = [output for output in masks if output >= first]
        out = runtime.sample_again(
            [(o - first, plan.out_params[o], plan.positions[plan.out_rows[o]], masks[o]) for o in kept]
        )
        return with_rows(result, kept, array("i", out["tokens"]), array("f", out["logprobs"]), out["top_logprobs"])

    @property
    def logits(self) -> npt.NDArray[np.float32]:
        """float32 (output rows, vocab) of the last collected step, as the model gave them.

        Of a step with more than min(max_rows, max_seqs) output rows, only those computed last. RuntimeError during one.
        """
        values = np.frombuffer(self._open_runtime().logits(), np.float32)
        return values.reshape(-1, self._info.vocab_size)

    def profile(self, *, reset: bool = False) -> dict[str, int]:
        """Nanoseconds by kind of op, with steps and rows, since the start or the last reset.

        RuntimeError during a step.
        """
        runtime = self._open_runtime()
        figures: dict[str, int] = runtime.profile()
        if reset:
            runtime.reset_profile()
        return figures

    def load_adapter(self, slot: int, path: str) -> None:
        raise ConfigError("adapters are not built yet")

    def unload_adapter(self, slot: int) -> None:
        raise ConfigError("adapters are not built yet")

    def close(self) -> None:
        """Waits for a step in flight, then frees everything. May be called twice."""
        self._runtime = None
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _open_runtime(self) -> _native.Runtime:
        if self._runtime is None:
            raise RuntimeError("the executor is closed")
        return self._runtime


def _info(
    plan: Plan,
    memory: MemoryBudget,
    block_bytes: Sequence[int],
    scheduler: SchedulerConfig,
    details: Mapping[str, str],
) -> ExecutorInfo:
    return ExecutorInfo(
        name="native",
        cache_groups=tuple(
            replace(group, bytes_per_block=size) for group, size in zip(plan.groups, block_bytes, strict=True)
        ),
        block_size=memory.block_size,
        num_blocks=memory.num_blocks,
        max_rows=scheduler.max_num_batched_tokens,
        max_seqs=scheduler.max_num_seqs,
        max_position=plan.max_position,
        vocab_size=plan.vocab,
        details=details,
        memory={**memory.parts, "kv": memory.pool},
    )


def _kv_dtype(asked: str, plan: Plan) -> str:
    """ "auto" is bf16, or fp32 where all weights are fp32."""
    if asked != "auto":
        return asked
    return "fp32" if _formats(plan) == {"f32"} else "bf16"


def _formats(plan: Plan) -> set[str]:
    return {tensor.format for tensor in plan.tensors if tensor.kind == "linear"}


@contextmanager
def enough_threads(threads: int) -> Iterator[None]:
    """ConfigError where native code cannot start so many threads."""
    try:
        yield
    except _native.ThreadError as error:
        raise ConfigError(no_more_threads(f"{threads} compute threads (--threads)", error)) from error


def isa_levels() -> dict[str, str | None]:
    """Instruction-set levels that kernels were compiled for, ascending: None where usable here, else why not."""
    levels: dict[str, str | None] = _native.ops.isa_levels()
    return levels
