"""A sequence, its states, and the one function that changes them."""

from array import array
from enum import Enum, auto

from legato.cache.block_tables import BlockTables
from legato.cache.prefix import Prefix
from legato.core.grammar import Matcher
from legato.core.types import FinishReason, PromptLogprobs, Request

__all__ = ["Event", "Sequence", "State", "transition"]


class State(Enum):
    WAITING = auto()  # never computed
    RUNNING = auto()  # holds a place (sequence slot) and blocks
    PREEMPTED = auto()  # gave both back; keeps its tokens and computes them again when resumed
    FINISHED = auto()


class Event(Enum):
    ADMIT = auto()  # first admission and resumption
    PREEMPT = auto()
    STOP = auto()
    LENGTH = auto()
    ABORT = auto()
    ERROR = auto()


_NEXT = {
    (State.WAITING, Event.ADMIT): State.RUNNING,
    (State.WAITING, Event.ABORT): State.FINISHED,
    (State.WAITING, Event.ERROR): State.FINISHED,
    (State.RUNNING, Event.PREEMPT): State.PREEMPTED,
    (State.RUNNING, Event.STOP): State.FINISHED,
    (State.RUNNING, Event.LENGTH): State.FINISHED,
    (State.RUNNING, Event.ABORT): State.FINISHED,
    (State.RUNNING, Event.ERROR): State.FINISHED,
    (State.PREEMPTED, Event.ADMIT): State.RUNNING,
    (State.PREEMPTED, Event.STOP): State.FINISHED,  # a stop string found in text sent before
    (State.PREEMPTED, Event.ABORT): State.FINISHED,
    (State.PREEMPTED, Event.ERROR): State.FINISHED,
}
_REASONS = {
    Event.STOP: FinishReason.STOP,
    Event.LENGTH: FinishReason.LENGTH,
    Event.ABORT: FinishReason.ABORT,
    Event.ERROR: FinishReason.ERROR,
}


class Sequence:
    """One choice of one request.

    Invariants: num_computed <= num_tokens <= max_tokens; slot >= 0 exactly while a place is held. num_computed counts
    what has been put into a step, also into one that still runs. While num_padding > 0, and of an ended sequence that
    keeps its place in a padded batch, it counts rows that nobody reads.
    """

    __slots__ = (
        "choice",
        "end_ids",
        "finish_reason",
        "matcher",
        "max_tokens",
        "min_end_position",
        "num_cached",
        "num_computed",
        "num_padding",
        "num_pinned",
        "num_prompt",
        "num_restored",
        "num_tokens",
        "prefixes",
        "rank",
        "request",
        "run",
        "scores",
        "slot",
        "state",
        "tables",
        "tokens",
        "waited_s",
        "waiting_since_s",
        "wants_reset",
    )

    def __init__(self, request: Request, choice: int, context: int, tables: BlockTables) -> None:
        """`context` is the longest sequence that is possible, in tokens; the last of them is never computed."""
        params = request.params
        self.request = request
        self.choice = choice
        self.state = State.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_prompt = len(request.prompt)
        self.num_tokens = self.num_prompt
        # A sequence that gives no token has a place for one: it is sampled as all others, and dropped.
        wanted = context if params.max_tokens is None else self.num_prompt + max(1, params.max_tokens)
        self.max_tokens = min(context, wanted)
        self.end_ids = request.end_token_ids.union(params.stop_token_ids)
        self.min_end_position = self.num_prompt + params.min_tokens
        self.tokens = array("i")  # filled when its turn comes: choices that wait share the request's prompt
        self.prefixes: list[Prefix] = []  # see PrefixCache.chain; kept over a preemption, as the tokens are
        self.num_cached = 0  # prompt tokens that were computed already at the first admission
        self.num_restored = 0  # prompt tokens whose blocks came back from the host tier for it
        self.num_pinned = 0  # prompt tokens that it computed and that are pinned for its breakpoints
        self.matcher: Matcher | None = None  # made at the first admission; kept over a preemption, as the tokens are
        self.tables = tables
        self.slot = -1
        self.run = 0  # counts admissions: tells a step's result from before a preemption from one after it
        self.rank = 0.0  # while it runs; see Policy
        # While it waits: when it would have come, had it never run. While it runs: how long it has waited.
        self.waiting_since_s = request.arrival_s
        self.waited_s = 0.0
        self.wants_reset = False
        self.num_computed = 0
        self.scores: PromptLogprobs | None = None  # of the prompt, as far as this admission has computed it
        self.num_padding = 0  # rows to compute before the prompt, to be forgotten then (policy static)

    @property
    def output(self) -> "array[int]":
        return self.tokens[self.num_prompt :]

    @property
    def scores_prompt(self) -> bool:
        """Whether the log probabilities of the prompt are still to be told: all of it is computed for them."""
        return self.request.params.prompt_logprobs is not None and self.num_tokens == self.num_prompt


def transition(sequence: Sequence, event: Event) -> None:
    """Move a sequence to its next state. The only place that writes `state` and `finish_reason`.

    Called while planning or committing a step, never from elsewhere. ValueError: the event is impossible now; a
    finished sequence takes no event, so each has exactly one end.
    """
    state = _NEXT.get((sequence.state, event))
    if state is None:
        where = f"choice {sequence.choice} of request {sequence.request.request_id}"
        raise ValueError(f"{where} is {sequence.state.name} and cannot take {event.name}")
    sequence.state = state
    sequence.finish_reason = _REASONS.get(event)
