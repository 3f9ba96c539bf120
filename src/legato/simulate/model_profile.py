"""From any config.json to the sizes that a roofline needs, through the same family files that serve the model."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from legato.core.errors import CheckpointError
from legato.executor.roofline import AttentionCost, Experts, ModelProfile
from legato.models import find
from legato.models.spec import Arch, Attention, Block, Body, GatedMlp, Head, Mlp, Parallel, PostNorm, Residual
from legato.models.spec_bodies import LatentAttention, Moe, NormedAttention, SinkAttention

__all__ = ["BUILT_IN", "profile", "read_profile"]

BUILT_IN = Path(__file__).with_name("configs")  # config.json files of well-known shapes, by name


def read_profile(model: str) -> ModelProfile:
    """The profile of a built-in name, a config.json, or a folder that has one. CheckpointError names file and key."""
    known = BUILT_IN / f"{model}.json"
    path = known if known.is_file() else Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in BUILT_IN.glob("*.json")))
        raise CheckpointError(f"{path}: no such file, and not one of {names}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    name = path.parent.resolve().name if path.name == "config.json" else path.stem
    return profile(name, find(config, str(path), declared=True))


def profile(name: str, arch: Arch) -> ModelProfile:
    """Sizes of an architecture. CheckpointError for one that has no cost here: state spaces, encoders, streams."""
    if arch.streams is not None or not isinstance(arch.head, Head):
        raise CheckpointError(f"{arch.file}: {arch.name} cannot be simulated: no cost is known for its streams or head")
    sizes = _Sizes(arch)
    for layer in arch.layers:
        for block in layer.blocks:
            for body in _bodies(block, arch):
                sizes.add(body)
    table = arch.vocab * arch.hidden
    return ModelProfile(
        name=name,
        vocab=arch.vocab,
        hidden=arch.hidden,
        max_position=arch.max_position,
        layers=len(arch.layers),
        params=sizes.params,
        head=table,
        tables=(0 if arch.head.tied else table) + sum(t.rows * arch.hidden for t in arch.embedding.added),
        experts=tuple(Experts(count, top_k, params) for (count, top_k), params in sizes.experts.items()),
        attention=tuple(replace(kind, layers=layers) for kind, layers in sizes.attention.items()),
    )


def _bodies(block: Block, arch: Arch) -> list[Body]:
    match block:
        case Residual(body=body) | PostNorm(body=body):
            return [body]
        case Parallel(branches=branches):
            return [body for _, body in branches]
    raise CheckpointError(f"{arch.file}: {arch.name} cannot be simulated: no cost is known for {type(block).__name__}")


@dataclass
class _Sizes:
    """Sums over the layers. Attention: layers by what one costs; experts: weights of one by (count, top_k)."""

    arch: Arch
    params: int = 0
    experts: Counter[tuple[int, int]] = field(default_factory=Counter)
    attention: Counter[AttentionCost] = field(default_factory=Counter)

    def add(self, body: Body) -> None:
        hidden = self.arch.hidden
        match body:
            case SinkAttention(attention=inner) | NormedAttention(attention=inner):
                self.add(inner)
            case Attention():
                heads, kv_heads, dim = body.heads, body.kv_heads, body.head_dim
                self.params += hidden * dim * (2 * heads + 2 * kv_heads)
                kind = "full" if body.window is None else "window"
                cost = AttentionCost(kind, body.window, 1, kv_heads, 2 * kv_heads * dim, 4 * heads * dim)
                self.attention[cost] += 1
            case LatentAttention():
                self._add_latent(body)
            case GatedMlp():
                self.params += 3 * hidden * body.width
            case Mlp():
                self.params += 2 * hidden * body.width
            case Moe():
                self.params += hidden * body.experts.count
                self.experts[body.experts.count, body.router.top_k] += 3 * hidden * body.experts.width
                if body.shared is not None:
                    self.add(body.shared)
            case _:
                name, kind = self.arch.name, type(body).__name__
                raise CheckpointError(f"{self.arch.file}: {name} cannot be simulated: no cost is known for {kind}")

    def _add_latent(self, body: LatentAttention) -> None:
        """Queries are brought into the latent space, so that the cache is read as it is; no head owns a part of it."""
        hidden, query = self.arch.hidden, body.heads * (body.nope_dim + body.rope_dim)
        self.params += hidden * body.q_rank + body.q_rank * query + hidden * (body.rank + body.rope_dim)
        self.params += body.rank * body.heads * (body.nope_dim + body.value_dim)
        self.params += body.heads * body.value_dim * hidden
        values = body.rank + body.rope_dim
        self.attention[AttentionCost("latent", None, 1, 1, values, 2 * body.heads * (values + body.rank))] += 1
