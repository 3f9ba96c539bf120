"""Put an engine together over an executor that is ready."""

from dataclasses import dataclass

import legato
from legato.core.config import EngineConfig
from legato.core.types import Executor, ExecutorInfo
from legato.engine.defaults import sampling_defaults
from legato.engine.grammars import Grammars
from legato.engine.inputs import Inputs
from legato.engine.loop import EngineLoop
from legato.engine.metrics import Metrics
from legato.sampling.compiler import GrammarCompiler, Vocabulary
from legato.scheduler.scheduler import Scheduler
from legato.tokenizer.assets import TextAssets
from legato.tokenizer.tokenizer import Tokenizer
from legato.weights.cache_dir import Hold

__all__ = ["Engine", "assemble"]


@dataclass(frozen=True, slots=True)
class Engine:
    """A complete engine that nobody drives yet: give `loop.publish` a receiver and run `loop.run` in a thread."""

    loop: EngineLoop
    inputs: Inputs
    grammars: Grammars
    tokenizer: Tokenizer
    metrics: Metrics
    executor: Executor
    info: ExecutorInfo
    model_names: tuple[str, ...]
    fingerprint: str  # names what the answers depend on beside the request: version, model, numbers, instruction set
    memory: str  # the memory table, ready to print; empty where the executor plans none
    hold: Hold | None  # on the engine file

    def close(self) -> None:
        """Free the model. The loop must have ended."""
        self.grammars.close()
        self.executor.close()
        if self.hold is not None:
            self.hold.close()


def assemble(
    executor: Executor,
    assets: TextAssets,
    config: EngineConfig,
    name: str,
    memory: str = "",
    hold: Hold | None = None,
) -> Engine:
    """An engine over `executor`, which it owns, as it does `hold`.

    `name` is what clients call the model, unless the configuration says otherwise.
    """
    info = executor.info()
    tokenizer = Tokenizer(assets)
    scheduler = Scheduler(info, config.scheduler)
    names = config.model.served_model_name or (name,)
    metrics = Metrics(names[0], scheduler.context, info, config, scheduler.stats())
    inputs = Inputs(
        assets,
        tokenizer,
        vocab_size=tokenizer.num_ids(info.vocab_size),
        max_model_len=scheduler.context,
        check=scheduler.check,
        defaults=sampling_defaults(
            assets.generation_config, config, vocab_size=info.vocab_size, max_model_len=scheduler.context
        ),
        seed=config.seed,
    )
    vocabulary = Vocabulary(
        info.vocab_size,
        tokenizer.token_bytes,
        {*tokenizer.special_tokens.values(), *assets.eos_token_ids},
        tokenizer.encode_further,
    )
    grammars = Grammars(GrammarCompiler(vocabulary, config.grammars), config.grammars)
    loop = EngineLoop(scheduler, executor, tokenizer, metrics, config.scheduler)
    return Engine(
        loop, inputs, grammars, tokenizer, metrics, executor, info, names, _fingerprint(name, info), memory, hold
    )


def _fingerprint(name: str, info: ExecutorInfo) -> str:
    """The same after every restart: legato-0.1.0/SmolLM2-135M-Instruct/q4_1/kv-bf16/avx512_vnni."""
    details = info.details
    numbers = details.get("weights", "").replace(", ", "+")
    parts = (numbers, f"kv-{details.get('kv_cache_dtype', '')}", details.get("isa", info.name))
    return "/".join((f"legato-{legato.__version__}", name, *parts))
