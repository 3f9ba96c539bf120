"""What crosses the walls between the parts: requests, step plans, step results, events.

Words (used in this sense everywhere):
  step          one forward pass over one ragged batch
  row           one token computed in a step
  sequence      one stream of tokens; a request with n choices has n sequences
  num_tokens    tokens of a sequence that are known (prompt and output)
  num_computed  tokens whose keys and values are in the cache
  num_scheduled tokens that this step computes
  block         block_size consecutive KV slots; a block table maps logical to physical blocks
  slot          (KV) block * block_size + offset; (sequence) a stable number below max_num_seqs
"""

from __future__ import annotations  # array[int] cannot be evaluated before Python 3.12

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple, Protocol

from legato.core.answers import Reasoning
from legato.core.grammar import CompiledGrammar, Grammar, StructuredOutputsParams

__all__ = [
    "DEVICE_TIER",
    "HOST_TIER",
    "NO_BLOCK",
    "BeamOptions",
    "BeamSearchParams",
    "BlockCopy",
    "BlockTable",
    "Breakpoint",
    "CacheGroup",
    "Executor",
    "ExecutorInfo",
    "FinishReason",
    "Grammar",
    "OutputPurpose",
    "PromptLogprobs",
    "Request",
    "SamplingParams",
    "Service",
    "SlotReset",
    "StepPlan",
    "StepResult",
    "TokenEvent",
]

NO_BLOCK = -1
DEVICE_TIER, HOST_TIER = 0, 1


class FinishReason(StrEnum):
    """How a sequence ended. Every accepted sequence gets exactly one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Ranges are checked by `legato.sampling.params.validate`, which raises RequestError."""

    n: int = 1
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    min_p: float = 0.0
    seed: int | None = None  # None: the engine draws one at admission
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = 16  # None: what is left of the context
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # number of alternatives reported beside the chosen token
    logprob_token_ids: tuple[int, ...] = ()  # alternatives reported behind those, whatever their rank
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt; max_tokens may be 0 then
    logit_bias: Mapping[int, float] | None = None  # added to the logits of these token ids; cut to [-100, 100]
    allowed_token_ids: tuple[int, ...] | None = None  # no others are chosen
    grammar: Grammar | None = None  # tokens that do not fit are not chosen; the answer ends where nothing can follow
    structured_outputs: StructuredOutputsParams | None = None  # becomes `grammar`, of which it is a description
    bad_words: tuple[str, ...] = ()  # the output does not hold their tokens, as after a space or without one
    skip_reading_prefix_cache: bool = False  # compute the whole prompt; what is computed may still serve others


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A cache hint: keep what is computed of the first `length` prompt tokens for `ttl_s` seconds after its use."""

    length: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """Beam search. width: beams that live, and answers. Longer answers win with a higher `length_penalty`.

    early_stopping: True ends the search with the first `width` finished beams; False once no live beam scores better
    than all of them at its present length; "never" once none can at any length that it may reach.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """`LLM.beam_search`, in vLLM's words. RequestError from there for values out of range.

    early_stopping: see BeamOptions.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0  # 0 or 1: a search draws nothing
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    repetition_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


@dataclass(frozen=True, slots=True)
class Service:
    """What a request asks of the scheduling policy. One that does not know a field refuses other values than these."""

    priority: int = 0  # policy priority: lower is served first
    tenant: str = ""  # policy fair: whose share of the service it takes; others have no use for it
    ttft_s: float | None = None  # policy deadline: within which the first token and the whole answer are wanted,
    e2e_s: float | None = None  # counted from the arrival

    def targets(self) -> dict[str, float]:
        """Seconds of each target that is set, by the name of its field in a body."""
        named = {"ttft_target_ms": self.ttft_s, "e2e_target_ms": self.e2e_s}
        return {name: seconds for name, seconds in named.items() if seconds is not None}


@dataclass(frozen=True, slots=True)
class Request:
    """One accepted request, as the scheduler sees it. `params.max_tokens` and `params.seed` are set.

    `prompt` may wait long and be long: array('i') keeps it compact. `end_token_ids` end a sequence with "stop" (empty
    under ignore_eos); `params.stop_token_ids` do so always. Computed prefixes are shared only by requests with the same
    `cache_salt` and adapter. `bad_words` are token sequences that the output may not hold.
    `breakpoints` ascend by length. `reasoning` may come before the answer: stop strings and the grammar apply behind
    it. `shown_token_ids` are control tokens that are part of the text even where others are skipped.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    arrival_s: float
    end_token_ids: frozenset[int] = frozenset()
    cache_salt: str = ""
    adapter: int = -1
    bad_words: tuple[tuple[int, ...], ...] = ()
    breakpoints: tuple[Breakpoint, ...] = ()
    grammar: CompiledGrammar | None = None  # params.grammar, compiled
    reasoning: Reasoning | None = None
    shown_token_ids: frozenset[int] = frozenset()
    vocab_size: int = 0  # ids below it may be chosen; 0: all that the model has
    service: Service = Service()
    beam: BeamOptions | None = None  # the choices are the best beams of a search; only `legato.engine` knows it


class OutputPurpose(IntEnum):
    """What the executor does with the logits (or the hidden state) of an output row."""

    SAMPLE = 0
    VERIFY = 1
    PROMPT_LOGPROBS = 2
    POOL = 3


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Physical blocks of the step's sequences in one cache group.

    Sequence s owns `blocks[offsets[s]:offsets[s + 1]]`; entry i holds absolute positions
    [i * block_size, (i + 1) * block_size), or NO_BLOCK where the block behind a window was freed.
    """

    offsets: array[int]  # 'i', sequences + 1
    blocks: array[int]  # 'i'


@dataclass(frozen=True, slots=True)
class SlotReset:
    """A sequence moves into sequence slot `slot`: the executor forgets the slot's state and installs these parameters.

    Sent when a sequence is admitted or resumed, and not again while it stays. `prompt` and `output` are the tokens
    known so far, for penalties and bad words; both are empty where nothing needs them. Banned `end_token_ids` are
    masked for sampled positions below `min_position` (min_tokens). `bias_values[i]` is added to the logit of
    `bias_token_ids[i]`; tokens other than `allowed_token_ids` are masked, unless it is empty. The last token of a bad
    word is masked where the others are what the output ends with. `logprob_token_ids` are reported behind the
    `num_logprobs` best ones.
    """

    slot: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    choice: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    num_logprobs: int  # -1: none; 0: the chosen token only; k: and the k best
    min_position: int
    end_token_ids: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    bias_token_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    vocab_size: int = 0  # ids below it may be chosen and reported; 0: all
    logprob_token_ids: tuple[int, ...] = ()
    num_prompt_logprobs: int = -1  # as num_logprobs, for output rows with purpose PROMPT_LOGPROBS


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One whole-block copy done before compute, in list order.

    In the host tier a block is stored with its label, and found only under it.
    """

    group: int
    source_tier: int
    source: int
    target_tier: int
    target: int
    label: bytes = b""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step over one ragged batch, frozen. Flat columns are read by the native binding without a copy.

    Rows of a sequence are consecutive and in position order: sequence s has rows row_offsets[s]:row_offsets[s + 1].
    A row with purpose PROMPT_LOGPROBS samples nothing: its result is the log probability of its target. With a mask a
    token is drawn by another random number than without.
    """

    step_id: int
    # per row
    tokens: array[int]  # 'i'
    positions: array[int]  # 'i', rows * position_axes
    kv_slots: tuple[array[int], ...]  # 'q' per cache group: where this row's K and V go
    parents: array[int]  # 'i': row that this row follows (trees of drafts); empty when all follow their predecessor
    # per sequence
    row_offsets: array[int]  # 'i', sequences + 1
    seq_slots: array[int]  # 'i'
    block_tables: tuple[BlockTable, ...]  # per cache group
    adapters: array[int]  # 'i', -1 = base model; empty when all are
    # per output row
    out_rows: array[int]  # 'i', ascending
    out_purposes: array[int]  # 'b', OutputPurpose
    out_params: array[int]  # 'i': the sequence slot whose installed sampling parameters apply
    out_masks: array[int]  # 'i': index into `masks`, -1 = none; empty when no row has one
    out_targets: array[int] = field(default_factory=lambda: array("i"))  # 'i'; empty when no row has one, see below
    masks: tuple[bytes, ...] = ()  # little-endian bit per token id, 1 = allowed
    # before compute
    resets: tuple[SlotReset, ...] = ()
    copies: tuple[BlockCopy, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.tokens)

    @property
    def num_seqs(self) -> int:
        return len(self.seq_slots)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step produced, frozen. `faults[row]` is 1 where a row's values held NaN or Inf."""

    step_id: int
    tokens: array[int]  # 'i' per output row; -1 where nothing was sampled
    logprobs: array[float]  # 'f' per output row: of the chosen token, or of the target; NaN where not asked for
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...]  # per output row; () when no row asked
    faults: array[int]  # 'b' per row
    accepted: array[int] = field(default_factory=lambda: array("i"))  # per sequence: accepted draft tokens
    drafts: tuple[tuple[int, ...], ...] = ()  # per sequence: proposed next tokens
    pooled: tuple[array[float], ...] = ()
    transfers: tuple[int, ...] = ()  # finished asynchronous block copies
    lost_copies: tuple[int, ...] = ()  # indices into the plan's copies: those that could not be made
    times_ms: Mapping[str, float] = field(default_factory=dict)  # per phase


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table. kind: full | window | latent | state | cross."""

    name: str
    kind: str
    window: int | None
    num_layers: int
    bytes_per_block: int


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What the scheduler may know about an executor.

    host_slots: blocks per cache group that its host tier holds; only with one plan in flight. host_blocks: group, slot
    and label of those that lay there at start.
    """

    name: str
    cache_groups: tuple[CacheGroup, ...]
    block_size: int
    num_blocks: int  # per cache group
    max_rows: int  # rows of the largest step that the workspace was sized for
    max_seqs: int  # sequence slots
    max_position: int  # positions below this can be computed
    vocab_size: int
    chunk_align: int = 1
    position_axes: int = 1
    plans_in_flight: int = 1
    capabilities: frozenset[str] = frozenset()
    host_slots: int = 0
    host_blocks: tuple[tuple[int, int, bytes], ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)  # ISA, formats, KV dtype: for logs and /metrics
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by pool, as planned: for /metrics


class Executor(Protocol):
    """Runs step plans. `launch` returns at once where it can; `collect` waits for that step's result.

    `sample_again` is asked between `collect` and the next `launch`: the same result, but for output rows that are
    sampled once more, with masks, by index. Those whose logits are not kept stay as they are.
    """

    def info(self) -> ExecutorInfo: ...
    def launch(self, plan: StepPlan) -> None: ...
    def collect(self, step_id: int) -> StepResult: ...
    def sample_again(self, plan: StepPlan, result: StepResult, masks: Mapping[int, bytes]) -> StepResult: ...
    def load_adapter(self, slot: int, path: str) -> None: ...
    def unload_adapter(self, slot: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of a prompt's tokens but the first, which has none. Flat arrays, as prompts may be long.

    Entry i is of prompt token i + 1; its `count` best alternatives, best first, begin at i * count.
    """

    count: int
    logprobs: array[float]  # 'f'
    top_ids: array[int]  # 'i'
    top_logprobs: array[float]  # 'f'

    @classmethod
    def none_yet(cls, count: int) -> PromptLogprobs:
        return cls(count, array("f"), array("i"), array("f"))

    def append(self, logprob: float, top: Sequence[tuple[int, float]]) -> None:
        """The next token's. `top` holds `count` pairs of id and log probability."""
        self.logprobs.append(logprob)
        self.top_ids.extend(token for token, _ in top)
        self.top_logprobs.extend(value for _, value in top)

    def top(self, i: int) -> tuple[tuple[int, float], ...]:
        """The alternatives of entry i."""
        part = slice(i * self.count, (i + 1) * self.count)
        return tuple(zip(self.top_ids[part], self.top_logprobs[part], strict=True))


class TokenEvent(NamedTuple):
    """What the scheduler's commit says of one sequence: new tokens, and perhaps its end.

    Exactly one event per sequence has `finish` set, and it is the last. `stop_token` is the end or stop id that
    ended it; it is included in `tokens`. A request refused or failed as a whole yields one event per choice.
    """

    request_id: str
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    finish: FinishReason | None = None
    stop_token: int | None = None
    error: str | None = None
    error_param: str | None = None  # the field of the request that is to blame for it, if one is
    num_cached: int = 0  # prompt tokens served from the prefix cache, on the event of the first token
    prompt_logprobs: PromptLogprobs | None = None  # where asked for, on the event of the first token
    num_restored: int = 0  # those of them that came back from the host tier
    num_pinned: int = 0  # prompt tokens newly computed and pinned for the request's breakpoints, on the same event
