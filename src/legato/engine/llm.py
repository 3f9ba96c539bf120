"""The offline API, in vLLM's call shape: `LLM(model, **flags).generate(prompts, sampling_params)`."""

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, Self

from legato.core.config import EngineConfig, build
from legato.core.errors import EngineError, LegatoError, QueueFullError, RequestError
from legato.core.threads import NamedThread
from legato.core.types import (
    BeamOptions,
    BeamSearchParams,
    ExecutorInfo,
    FinishReason,
    Request,
    SamplingParams,
    Service,
)
from legato.engine.assemble import Engine
from legato.engine.llm_outputs import (
    BeamSearchOutput,
    CompletionOutput,
    Logprob,
    RequestOutput,
    add_output,
    beam_output,
    prompt_logprobs,
)
from legato.engine.outputs import Output
from legato.engine.progress import batch_progress
from legato.engine.start import start
from legato.protocol.beams import beam_options
from legato.sampling.params import MAX_LOGPROBS
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]

Prompt = str | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]
Each = int | Sequence[int] | None  # one for all, one for each prompt, or none


class _Asked(NamedTuple):
    """A prompt: as a text where it was one, and its tokens."""

    text: str | None
    ids: list[int]
    cache_salt: str | None = None


class LLM:
    """A model in this process. Takes the flags of `legato serve` by name, e.g. `LLM("path", format="int8")`.

    All but those of the server itself; `max_num_queued_tokens` has no effect, as the caller holds the prompts anyway.
    The engine runs in a thread of its own, so an interrupt stops a batch cleanly. Calls from several threads take
    turns. `close` (or a `with` block) frees the model.
    """

    def __init__(self, model: str = "", **flags: Any) -> None:
        """ConfigError for an unknown flag or bad value, CheckpointError for a model that cannot be read."""
        self._drive(start(build(EngineConfig, {"model": model, **flags})))

    @classmethod
    def over(cls, engine: Engine) -> Self:
        """The same over an engine that nobody drives yet; it is closed with the LLM."""
        llm = cls.__new__(cls)
        llm._drive(engine)
        return llm

    def _drive(self, engine: Engine) -> None:
        self._engine = engine
        self._outputs: queue.SimpleQueue[list[Output]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        loop = self._engine.loop
        loop.publish = self._outputs.put
        thread = NamedThread("legato-engine", loop.run)
        try:
            thread.start()
        except LegatoError:
            self._engine.close()
            raise
        self.close = weakref.finalize(self, _close, self._engine, thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def model_name(self) -> str:
        """What the model is called."""
        return self._engine.model_names[0]

    @property
    def info(self) -> ExecutorInfo:
        """What computes, and within which limits."""
        return self._engine.info

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation config says; `max_tokens` None is what is left of the context."""
        return self._engine.inputs.defaults

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Each = None,
        ttft_target_ms: Each = None,
        e2e_target_ms: Each = None,
    ) -> list[RequestOutput]:
        """Complete prompts, as one batch, and return their outputs in the order of the prompts.

        A prompt is a text, {"prompt": text} or {"prompt_token_ids": [...]}; the last two may also have a "cache_salt".
        sampling_params: one for all, one each, or None for the model's defaults. use_tqdm: show a progress bar.
        priority: lower is served first, with policy="priority"; ttft_target_ms and e2e_target_ms: with
        policy="deadline", counted from this call; an answer that would come too late ends with an error.
        RequestError for a prompt or parameter that cannot work, before anything runs.
        """
        services = _services(priority, ttft_target_ms, e2e_target_ms)
        return self._run(self._asked(prompts), sampling_params, use_tqdm, services)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The best `params.beam_width` answers to each prompt, best first, as the server's beam search finds them.

        concurrency_limit: prompts at a time. RequestError for what cannot work, before anything runs; EngineError where
        a search failed.
        """
        if concurrency_limit is not None and concurrency_limit < 1:
            raise RequestError(
                f"concurrency_limit must be at least 1, got {concurrency_limit}", param="concurrency_limit"
            )
        options = beam_options({**asdict(params), "n": params.beam_width, "use_beam_search": True})
        sampling = SamplingParams(
            n=params.beam_width,
            max_tokens=params.max_tokens,
            logprobs=min(2 * params.beam_width, MAX_LOGPROBS),
            ignore_eos=params.ignore_eos,
            include_stop_str_in_output=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            repetition_penalty=params.repetition_penalty,
        )
        asked = self._asked(prompts)
        size = concurrency_limit or max(1, len(asked))
        outputs = []
        for begin in range(0, len(asked), size):
            for result in self._run(asked[begin : begin + size], sampling, use_tqdm, beam=options):
                if failed := [answer.error for answer in result.outputs if answer.error]:
                    raise EngineError(failed[0])
                outputs.append(beam_output(result, self._engine.tokenizer, params.skip_special_tokens))
        return outputs

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: Each = None,
        ttft_target_ms: Each = None,
        e2e_target_ms: Each = None,
    ) -> list[RequestOutput]:
        """Answer one talk, or several as one batch. A talk is a list of {"role": ..., "content": ...}.

        tools: as in the HTTP API, where calls are read out of the text; here they are part of it.
        continue_final_message: the answer goes on with the last message; add_generation_prompt must be False then.
        chat_template: Jinja text instead of the model's. priority and targets: as of `generate`.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "add_generation_prompt must be False where continue_final_message is True",
                param="add_generation_prompt",
            )
        talks: Sequence[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        kwargs = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template": chat_template,
            "tools": tools,
            **(chat_template_kwargs or {}),
        }
        asked = [_Asked(None, self._engine.inputs.chat(talk, **kwargs)) for talk in talks]
        return self._run(asked, sampling_params, use_tqdm, _services(priority, ttft_target_ms, e2e_target_ms))

    def stream(
        self, prompt: Prompt | Messages, sampling_params: SamplingParams | None = None
    ) -> Generator[Output, None, None]:
        """The outputs of one prompt or talk, as they come. Closing the iterator aborts it."""
        request = self._request(_Asked(None, self.encode(prompt), _salt(prompt)), sampling_params, Service(), None)
        with self._lock:
            yield from self._outputs_of([request])

    def encode(self, prompt: Prompt | Messages) -> list[int]:
        """Token ids of a prompt, or of a talk as the chat template writes it."""
        return self._encode(prompt)[1] if isinstance(prompt, str | Mapping) else self._engine.inputs.chat(prompt)

    def _encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, str):
            return prompt, self._engine.inputs.encode(prompt)
        if "prompt_token_ids" in prompt:
            return None, list(prompt["prompt_token_ids"])
        if isinstance(text := prompt.get("prompt"), str):
            return text, self._engine.inputs.encode(text)
        raise RequestError('a prompt must be a text or {"prompt_token_ids": [...]}', param="prompt")

    def _asked(self, prompts: Prompt | Sequence[Prompt]) -> list[_Asked]:
        several = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        return [_Asked(*self._encode(each), _salt(each)) for each in several]

    def _request(
        self, asked: _Asked, params: SamplingParams | None, service: Service, beam: BeamOptions | None
    ) -> Request:
        given = self.get_default_sampling_params() if params is None else params
        request = self._engine.inputs.request(asked.ids, given, cache_salt=asked.cache_salt, service=service, beam=beam)
        return self._engine.grammars.compiled(request)

    def _run(
        self,
        prompts: Sequence[_Asked],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        services: Callable[[int], list[Service]] = lambda count: [Service()] * count,
        beam: BeamOptions | None = None,
    ) -> list[RequestOutput]:
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(each)} sampling_params", param="sampling_params")
        results = {}
        requests = []
        best: dict[str, int] = {}  # alternatives that have a rank
        for asked, one, service in zip(prompts, each, services(len(prompts)), strict=True):
            request = self._request(asked, one, service, beam)
            answers = [CompletionOutput(index) for index in range(request.params.n)]
            results[request.request_id] = RequestOutput(
                request.request_id, asked.text, list(asked.ids), answers, seed=request.params.seed
            )
            best[request.request_id] = request.params.logprobs or 0
            requests.append(request)
        with self._lock, batch_progress(len(requests), shown=use_tqdm) as tick:
            for output in self._outputs_of(requests):
                result = results[output.request_id]
                add_output(result.outputs[output.choice], output, self._engine.tokenizer, best[output.request_id])
                if output.choice == 0:
                    result.num_cached_tokens = output.num_cached
                    if output.prompt_logprobs is not None:
                        result.prompt_logprobs = prompt_logprobs(
                            result.prompt_token_ids, output.prompt_logprobs, self._engine.tokenizer
                        )
                result.finished = all(answer.finish_reason for answer in result.outputs)
                tick(len(output.tokens), result.finished)
        return list(results.values())

    def _outputs_of(self, requests: Sequence[Request]) -> Iterator[Output]:
        """Submit requests, a bounded number at a time, and yield outputs until all have ended."""
        loop = self._engine.loop
        for request in requests:
            loop.refuse_what_never_fits([request])
        waiting = deque(requests)
        running: dict[str, int] = {}  # choices that have not ended
        try:
            while waiting or running:
                batch = self._next_batch(waiting, sum(running.values()))
                refused = loop.submit_each(batch, limit_tokens=False)
                running |= {each.request_id: each.params.n for each in batch if each.request_id not in refused}
                for request in batch:
                    if request.request_id in refused:
                        yield from _refused(request, refused[request.request_id])
                if not running:
                    continue
                outputs = self._outputs.get()
                _count_down(running, outputs)  # before they are yielded: the reader may stop at any of them
                yield from outputs
                if loop.failure is not None:
                    raise LegatoError(loop.failure)
        finally:
            self._abort(running)

    def _next_batch(self, waiting: deque[Request], running: int) -> list[Request]:
        """Take out what to submit while so many choices run: enough to fill all places, and no more than may queue."""
        enough, most = 2 * self._engine.info.max_seqs, self._engine.loop.max_queued
        batch: list[Request] = []
        while waiting and (not running or (running < enough and running + waiting[0].params.n <= most)):
            batch.append(waiting.popleft())
            running += batch[-1].params.n
        return batch

    def _abort(self, running: dict[str, int]) -> None:
        """Abort what still runs and take in its last outputs, so that the next call does not see them."""
        loop = self._engine.loop
        for request_id in running:
            loop.abort(request_id)
        while running and loop.failure is None:
            _count_down(running, self._outputs.get())


def _salt(prompt: Prompt | Messages) -> str | None:
    return prompt.get("cache_salt") if isinstance(prompt, Mapping) else None


def _services(priority: Each, ttft_ms: Each, e2e_ms: Each) -> Callable[[int], list[Service]]:
    """For a number of prompts what each asks of the policy. RequestError where there are more or fewer than prompts."""

    def each(name: str, given: Each, count: int) -> list[int | None]:
        several: list[int | None] = [given] * count if given is None or isinstance(given, int) else [*given]
        if len(several) != count:
            raise RequestError(f"{count} prompts but {len(several)} of {name}", param=name)
        return several

    def services(count: int) -> list[Service]:
        columns = zip(
            each("priority", priority, count),
            each("ttft_target_ms", ttft_ms, count),
            each("e2e_target_ms", e2e_ms, count),
            strict=True,
        )
        return [
            Service(
                priority=first or 0,
                ttft_s=None if ttft is None else ttft / 1000,
                e2e_s=None if e2e is None else e2e / 1000,
            )
            for first, ttft, e2e in columns
        ]

    return services


def _refused(request: Request, error: QueueFullError) -> Iterator[Output]:
    """The end of a request that the policy does not take: it would be too late."""
    for choice in range(request.params.n):
        yield Output(request.request_id, choice, "", (), 0, finish=FinishReason.ERROR, error=str(error))


def _count_down(running: dict[str, int], outputs: Iterable[Output]) -> None:
    """Take the choices that have ended off the count of each request."""
    for output in outputs:
        if output.finish is not None and output.request_id in running:
            running[output.request_id] -= 1
            if not running[output.request_id]:
                del running[output.request_id]


def _close(engine: Engine, thread: threading.Thread) -> None:
    engine.loop.stop()
    thread.join()
    engine.close()
