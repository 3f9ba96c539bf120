"""Who holds which place and which blocks. Everything that planning and committing share."""

from bisect import insort_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from legato.cache.block_tables import KvBlocks
from legato.cache.host_tier import HostTier
from legato.cache.pins import Pins
from legato.cache.prefix import Prefix
from legato.cache.prefix_cache import PrefixCache
from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from legato.core.types import BlockCopy, ExecutorInfo, PromptLogprobs
from legato.sampling.params import may_close, may_retry
from legato.scheduler.choose import make_policy
from legato.scheduler.policies import Policy
from legato.scheduler.state import Event, Sequence, State, transition
from legato.scheduler.step_time import StepTimes

__all__ = ["Ledger", "Limits"]

_rank = attrgetter("rank")
_REUSABLE = ("full", "window", "latent")  # kinds of cache groups in which a block says all about its positions


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step and a sequence, from the executor and the configuration together."""

    max_rows: int  # rows of a step
    max_places: int  # sequences that hold a place at once
    max_chunk: int  # rows of one sequence in a step
    chunk_align: int  # chunks end at multiples of this, or at the last known token
    context: int  # tokens of the longest sequence, prompt and output
    max_step_ms: float  # of a step in which a sequence decodes, by prediction; 0: no bound


class Ledger:
    """Places, blocks and queues of all live sequences.

    A place is a sequence slot: it stays with a sequence from admission until it ends or is preempted. `running` is in
    the order of service: by rank, then by admission.
    """

    def __init__(self, info: ExecutorInfo, config: SchedulerConfig, clock: Callable[[], float]) -> None:
        max_rows = min(config.max_num_batched_tokens, info.max_rows)
        # One row for each decoding sequence and one aligned chunk must always fit: nobody starves (max_places below).
        if max_rows < info.chunk_align:
            raise ConfigError(
                f"max_num_batched_tokens: {max_rows} rows are fewer than the model's smallest chunk, {info.chunk_align}"
            )
        if info.position_axes != 1:
            raise ConfigError(f"models with {info.position_axes} position axes are not supported")
        chunk = config.long_prefill_token_threshold or max_rows  # 0: no threshold
        chunk = min(max_rows, max(chunk, info.chunk_align))
        self.policy: Policy = make_policy(config)
        self.blocks = KvBlocks(info.cache_groups, info.block_size, info.num_blocks, chunk, info.chunk_align)
        # Whether a row can be computed again behind others of its sequence.
        self._recomputes = all(group.kind in _REUSABLE for group in info.cache_groups)
        reusable = self.policy.reuses_prefixes and self._recomputes
        self._prefixes: PrefixCache | None = None
        if config.enable_prefix_caching and reusable:
            pins = Pins(self.blocks, config.pin_budget, clock)
            self._prefixes = PrefixCache(self.blocks, info.chunk_align, pins, _host_tier(info))
        elif info.host_slots:
            raise ConfigError("kv_offloading_size: without a prefix cache no evicted block would ever be read again")
        most = self.blocks.max_positions
        self.limits = Limits(
            max_rows=max_rows,
            max_places=min(config.max_num_seqs, info.max_seqs, max_rows - info.chunk_align + 1),
            max_chunk=self.blocks.max_chunk,
            chunk_align=info.chunk_align,
            context=info.max_position if most is None else min(info.max_position, most + 1),
            max_step_ms=0 if self.policy.holds_places else config.max_step_ms,
        )
        self.step_times = StepTimes()
        self.now_s = 0.0  # when the step began to be planned
        self.sequences: dict[str, list[Sequence]] = {}  # live ones, by request
        self.running: list[Sequence] = []
        self.held: list[Sequence] = []  # ended, but the place is kept (policy static)
        self.padded_length = 0  # positions that each sequence of a padded batch has blocks for
        self.num_preemptions = 0
        self.num_corrupted = 0  # sequences that ended because of NaN or Inf
        self.moves: list[tuple[Sequence, Event]] = []  # admissions and preemptions while the last step was planned
        self.prefix_queries = 0  # prompt tokens that were looked up in the prefix cache, and those found
        self.prefix_hits = 0
        self.prefix_hits_host = 0  # of them, those that were restored from the host tier
        self._free_slots = list(range(self.limits.max_places - 1, -1, -1))
        # The sequence for which there was no room last, and the tokens that it had found computed. None once somebody
        # has left, has got blocks that others have too, or has lost a pin: there may be room now.
        self._put_off: tuple[Sequence, int] | None = None

    @property
    def places_taken(self) -> int:
        return self.limits.max_places - len(self._free_slots)

    def take_prefix(self, sequence: Sequence) -> None:
        """Give a sequence from the queue the blocks of its beginning that are computed already."""
        request = sequence.request
        if not sequence.tokens:
            sequence.tokens.extend(request.prompt)
            if self._prefixes is not None:
                sequence.prefixes = self._prefixes.chain(request.adapter, request.cache_salt)
        if self._reads_prefixes(sequence):
            assert self._prefixes is not None
            found, restored = self._prefixes.take(sequence.tables, sequence.prefixes, sequence.tokens)
            sequence.num_computed = found
            sequence.num_restored = max(sequence.num_restored, restored)  # they stay on the device if it has to wait

    def _reads_prefixes(self, sequence: Sequence) -> bool:
        skips = sequence.request.params.skip_reading_prefix_cache or sequence.scores_prompt
        return self._prefixes is not None and not skips

    def follows(self, sequence: Sequence, under_way: set[Prefix]) -> bool:
        """Whether a sequence without rows yet should wait for one more step: it computes what comes next in it.

        under_way: the prefixes that others compute in this step. If not, the sequence has what was computed of its
        beginning since it was admitted.
        """
        if self._prefixes is None or not self._reads_prefixes(sequence):
            return False
        length = sequence.num_computed // self.blocks.block_size
        found, missing = self._prefixes.missing_after(sequence.prefixes, sequence.tokens, length)
        if missing in under_way:
            return True
        if found > length:
            before = sequence.num_computed
            self.give_back_blocks(sequence)
            self.take_prefix(sequence)
            self.policy.found_more(sequence, sequence.num_computed - before)
            self._put_off = None
        return False

    def filled(self, sequence: Sequence, rows: int) -> list[Prefix]:
        """The prefixes that the next rows of a running sequence complete."""
        if self._prefixes is None:
            return []
        start = sequence.num_computed
        return self._prefixes.filled(sequence.prefixes, sequence.tokens, start, start + rows)

    def begin(self, sequence: Sequence) -> None:
        """A running sequence gets its first rows: what it has found is its hit."""
        if sequence.run == 1 and self._reads_prefixes(sequence):
            sequence.num_cached = sequence.num_computed
            self.prefix_queries += sequence.num_prompt
            self.prefix_hits += sequence.num_cached
            self.prefix_hits_host += min(sequence.num_restored, sequence.num_cached)
        self._pin(sequence, 0, sequence.num_computed)

    def keep_prefix(self, sequence: Sequence, start: int, end: int) -> None:
        """Positions [start, end) of a running sequence are computed: others may begin with them."""
        size = self.blocks.block_size
        if self._prefixes is not None and start // size < end // size:  # a block is full
            self._prefixes.keep(sequence.tables, sequence.prefixes, sequence.tokens, start, end)
            self._pin(sequence, start, end)

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Copies to and from the host tier that the plan now made has to begin with."""
        if self._prefixes is None or self._prefixes.host is None:
            return ()
        return self._prefixes.host.take_copies()

    def lose(self, copies: Iterable[BlockCopy]) -> None:
        """These copies were not made. Who was to read what a lost one should have restored computes it again."""
        assert self._prefixes is not None
        for copy in copies:
            if self._prefixes.lost(copy):
                for sequence in reversed(self.running.copy()):
                    if copy.target in sequence.tables.groups[copy.group]:
                        before = sequence.tables.groups[copy.group].index(copy.target) * self.blocks.block_size
                        sequence.num_cached = min(sequence.num_cached, before)
                        self.evict(sequence)

    @property
    def host_blocks(self) -> int:
        """Blocks in the host tier."""
        return 0 if self._prefixes is None or self._prefixes.host is None else self._prefixes.host.num_blocks

    @property
    def host_copies_lost(self) -> int:
        """Copies to and from the host tier that could not be made, since the start."""
        return 0 if self._prefixes is None or self._prefixes.host is None else self._prefixes.host.num_lost

    def expire_pins(self) -> None:
        """End the pins whose time is over."""
        if self._prefixes is not None and self._prefixes.pins.expire():
            self._put_off = None

    def _pin(self, sequence: Sequence, start: int, end: int) -> None:
        """Honour the cache hints on positions [start, end)."""
        breakpoints = sequence.request.breakpoints
        if breakpoints and self._prefixes is not None:
            pinned = self._prefixes.pin(sequence.prefixes, sequence.tokens, breakpoints, start, end)
            sequence.num_pinned = max(sequence.num_pinned, pinned - sequence.num_cached)

    def put_off(self, sequence: Sequence) -> None:
        """There is no room for the sequence from the queue that `take_prefix` was called for."""
        self._put_off = sequence, sequence.num_computed
        self.give_back_blocks(sequence)

    def still_lacks_room(self, sequence: Sequence) -> bool:
        """Whether nothing has changed for the better since it was put off, so that it need not look again.

        While nobody leaves, the blocks that are free and not reserved only become fewer (but where windows drop some);
        it would need fewer of its own only if it found more.
        """
        if self._put_off is None or self._put_off[0] is not sequence or self.blocks.windowed:
            return False
        if self._prefixes is None or not self._reads_prefixes(sequence):
            return True
        length = self._put_off[1] // self.blocks.block_size
        return not self._prefixes.finds(sequence.prefixes, sequence.tokens, length + 1)

    def give_back_blocks(self, sequence: Sequence) -> None:
        """Take all blocks from a sequence; it keeps its tokens."""
        self.blocks.release(sequence.tables)
        sequence.num_computed = 0

    def admit(self, sequence: Sequence) -> None:
        """Give a sequence from the queue a place, after `take_prefix`. More blocks follow as chunks are computed."""
        self.policy.queue.remove(sequence)
        transition(sequence, Event.ADMIT)
        if sequence.matcher is None and (grammar := sequence.request.grammar) is not None:
            params, ends = sequence.request.params, sequence.request.end_token_ids
            room = sequence.max_tokens - sequence.num_prompt if may_close(params) else None
            sequence.matcher = grammar.matcher(ends, room, may_retry=self._recomputes and may_retry(params))
        sequence.slot = self._free_slots.pop()
        sequence.run += 1
        sequence.wants_reset = True
        count = sequence.request.params.prompt_logprobs
        sequence.scores = PromptLogprobs.none_yet(count) if count is not None and sequence.scores_prompt else None
        sequence.waited_s = self.now_s - sequence.waiting_since_s
        sequence.rank = self.policy.rank(sequence, self.now_s)
        self._put_off = None
        insort_right(self.running, sequence, key=_rank)
        self.policy.entered(sequence)
        self.moves.append((sequence, Event.ADMIT))

    def evict(self, sequence: Sequence) -> None:
        """Send a running sequence back to the queue. It keeps its tokens, not what was computed of them."""
        self.running.remove(sequence)
        transition(sequence, Event.PREEMPT)
        self._leave_place(sequence)
        sequence.num_computed = 0
        sequence.waiting_since_s = self.now_s - sequence.waited_s
        self.num_preemptions += 1
        self.moves.append((sequence, Event.PREEMPT))
        self.policy.queue.put_back(sequence)

    def end(self, sequence: Sequence, event: Event) -> None:
        """End a sequence in any state and give back what it holds."""
        was_running = sequence.state is State.RUNNING
        transition(sequence, event)
        if was_running:
            self._end_running(sequence)
        else:
            self._put_off = None
            self.policy.queue.remove(sequence)
        siblings = self.sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self.sequences[sequence.request.request_id]

    def _end_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if self.policy.holds_places:
            self.held.append(sequence)
            if self.running:
                return
            for member in self.held:
                self._leave_place(member)
            self.held.clear()
        else:
            self._leave_place(sequence)

    def _leave_place(self, sequence: Sequence) -> None:
        self._put_off = None
        self.policy.left(sequence)
        self.blocks.release(sequence.tables)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1


def _host_tier(info: ExecutorInfo) -> HostTier | None:
    if not info.host_slots:
        return None
    if info.plans_in_flight > 1:  # a lost copy must be known before anything is planned on it
        raise ConfigError("kv_offloading_size: an executor with several plans in flight has no host tier")
    return HostTier(len(info.cache_groups), info.host_slots, info.host_blocks)
