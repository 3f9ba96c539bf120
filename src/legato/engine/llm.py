"""The offline API, in vLLM's call shape: `LLM(model, **flags).generate(prompts, sampling_params)`."""

import queue
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from legato.core.config import EngineConfig, build
from legato.core.errors import LegatoError, RequestError
from legato.core.types import ExecutorInfo, PromptLogprobs, Request, SamplingParams
from legato.engine.assemble import Engine
from legato.engine.outputs import Output
from legato.engine.progress import batch_progress
from legato.engine.start import start
from legato.tokenizer.tokenizer import Tokenizer

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput"]

Prompt = str | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability. rank counts from 1; None for the chosen token beyond the best."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One answer. `logprobs` and `cumulative_logprob` are None unless SamplingParams.logprobs was set."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers, one for each of SamplingParams.n. The seed repeats them."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    seed: int | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # SamplingParams.prompt_logprobs; the first is None


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
        thread = threading.Thread(target=loop.run, name="legato-engine", daemon=True)
        thread.start()
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
    ) -> list[RequestOutput]:
        """Complete prompts, as one batch, and return their outputs in the order of the prompts.

        A prompt is a text, {"prompt": text} or {"prompt_token_ids": [...]}; the last two may also have a "cache_salt".
        sampling_params: one for all, one each, or None for the model's defaults. use_tqdm: show a progress bar.
        RequestError for a prompt or parameter that cannot work, before anything runs.
        """
        several = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        return self._run([(*self._encode(each), _salt(each)) for each in several], sampling_params, use_tqdm)

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
    ) -> list[RequestOutput]:
        """Answer one talk, or several as one batch. A talk is a list of {"role": ..., "content": ...}.

        tools: as in the HTTP API, where calls are read out of the text; here they are part of it.
        continue_final_message: the answer goes on with the last message; add_generation_prompt must be False then.
        chat_template: Jinja text instead of the model's.
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
        prompts = [(None, self._engine.inputs.chat(talk, **kwargs), None) for talk in talks]
        return self._run(prompts, sampling_params, use_tqdm)

    def stream(
        self, prompt: Prompt | Messages, sampling_params: SamplingParams | None = None
    ) -> Generator[Output, None, None]:
        """The outputs of one prompt or talk, as they come. Closing the iterator aborts it."""
        request = self._request(self.encode(prompt), sampling_params, _salt(prompt))
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

    def _request(self, ids: Sequence[int], params: SamplingParams | None, cache_salt: str | None) -> Request:
        given = self.get_default_sampling_params() if params is None else params
        return self._engine.grammars.compiled(self._engine.inputs.request(ids, given, cache_salt=cache_salt))

    def _run(
        self,
        prompts: Sequence[tuple[str | None, list[int], str | None]],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        each = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(each)} sampling_params", param="sampling_params")
        results = {}
        requests = []
        best: dict[str, int] = {}  # alternatives that have a rank
        for (text, ids, salt), one in zip(prompts, each, strict=True):
            request = self._request(ids, one, salt)
            answers = [CompletionOutput(index) for index in range(request.params.n)]
            results[request.request_id] = RequestOutput(
                request.request_id, text, list(ids), answers, seed=request.params.seed
            )
            best[request.request_id] = request.params.logprobs or 0
            requests.append(request)
        with self._lock, batch_progress(len(requests), shown=use_tqdm) as tick:
            for output in self._outputs_of(requests):
                result = results[output.request_id]
                _add(result.outputs[output.choice], output, self._engine.tokenizer, best[output.request_id])
                if output.choice == 0:
                    result.num_cached_tokens = output.num_cached
                    if output.prompt_logprobs is not None:
                        result.prompt_logprobs = self._of_prompt(result.prompt_token_ids, output.prompt_logprobs)
                result.finished = all(answer.finish_reason for answer in result.outputs)
                tick(len(output.tokens), result.finished)
        return list(results.values())

    def _of_prompt(self, prompt: Sequence[int], scores: PromptLogprobs) -> list[dict[int, Logprob] | None]:
        tokenizer = self._engine.tokenizer
        known = enumerate(zip(prompt[1:], scores.logprobs, strict=True))
        return [
            None,
            *(_logprobs(token, logprob, scores.top(i), scores.count, tokenizer) for i, (token, logprob) in known),
        ]

    def _outputs_of(self, requests: Iterable[Request]) -> Iterator[Output]:
        """Submit requests, a bounded number at a time, and yield outputs until all have ended."""
        waiting = iter(requests)
        loop = self._engine.loop
        most = min(2 * self._engine.info.max_seqs, loop.max_queued)  # so none is refused for a full queue
        running: dict[str, int] = {}  # choices that have not ended
        try:
            while True:
                while sum(running.values()) < most and (request := next(waiting, None)) is not None:
                    running[request.request_id] = request.params.n
                    loop.submit([request], limit_tokens=False)
                if not running:
                    return
                outputs = self._outputs.get()
                _count_down(running, outputs)  # before they are yielded: the reader may stop at any of them
                yield from outputs
                if loop.failure is not None:
                    raise LegatoError(loop.failure)
        finally:
            self._abort(running)

    def _abort(self, running: dict[str, int]) -> None:
        """Abort what still runs and take in its last outputs, so that the next call does not see them."""
        loop = self._engine.loop
        for request_id in running:
            loop.abort(request_id)
        while running and loop.failure is None:
            _count_down(running, self._outputs.get())


def _salt(prompt: Prompt | Messages) -> str | None:
    return prompt.get("cache_salt") if isinstance(prompt, Mapping) else None


def _count_down(running: dict[str, int], outputs: Iterable[Output]) -> None:
    """Take the choices that have ended off the count of each request."""
    for output in outputs:
        if output.finish is not None and output.request_id in running:
            running[output.request_id] -= 1
            if not running[output.request_id]:
                del running[output.request_id]


def _add(answer: CompletionOutput, output: Output, tokenizer: Tokenizer, best: int) -> None:
    answer.text += output.text
    answer.token_ids += output.tokens
    if output.logprobs:
        answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + sum(output.logprobs)
        answer.logprobs = answer.logprobs or []
        tops = output.top_logprobs or ((),) * len(output.tokens)
        for token, logprob, top in zip(output.tokens, output.logprobs, tops, strict=True):
            answer.logprobs.append(_logprobs(token, logprob, top, best, tokenizer))
    if output.finish is not None:
        answer.finish_reason = output.finish.value
        answer.stop_reason = output.stop
        answer.error = output.error


def _logprobs(
    token: int, logprob: float, top: Sequence[tuple[int, float]], best: int, tokenizer: Tokenizer
) -> dict[int, Logprob]:
    """The `best` first ones of `top` have a rank; those behind them were asked for by id."""

    def text(id: int) -> str:
        return tokenizer.token_bytes(id).decode(errors="replace")

    ranked: dict[int, Logprob] = {}
    for rank, (id, value) in enumerate(top, 1):
        ranked.setdefault(id, Logprob(value, rank if rank <= best else None, text(id)))
    return ranked if token in ranked else {token: Logprob(logprob, None, text(token)), **ranked}


def _close(engine: Engine, thread: threading.Thread) -> None:
    engine.loop.stop()
    thread.join()
    engine.close()
