"""What the routes share: the engine client, the inputs, the names of the model, and whether the server drains."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from legato.chat.dialect import Dialect
from legato.core.answers import ToolUse
from legato.core.errors import QueueFullError, RequestError
from legato.core.threads import named_pool
from legato.core.types import SamplingParams
from legato.engine.assemble import Engine
from legato.engine.client import EngineClient
from legato.protocol.chat import TemplateFields, parse_chat
from legato.protocol.completion import parse_completion
from legato.protocol.requests import GenerateBody
from legato.protocol.responses import Reply
from legato.server.answers import ToolReadings
from legato.server.generate import Generation

__all__ = ["ServerState"]

LARGE_BODY = 2048  # bytes, about 1.5 ms to parse and tokenize; larger ones are prepared in a thread
DEFAULT_COMPLETION_TOKENS = 16

_T = TypeVar("_T")


class ServerState:
    """One per server. Methods run in the event loop, unless they say otherwise."""

    def __init__(
        self,
        engine: Engine,
        client: EngineClient,
        dialect: Dialect,
        *,
        max_body_bytes: int,
        keep_alive_s: float,
        stall_timeout_s: float,
        stream_interval: int,
        permissive_fields: bool,
        trust_request_chat_template: bool,
        makes_traces: bool,
        readings: ToolReadings | None = None,
    ) -> None:
        self.use(engine, client)
        self.max_body_bytes = max_body_bytes
        self.keep_alive_s = keep_alive_s
        self.started_s = int(time.time())
        self.draining = False
        self.open_requests = 0
        self.makes_traces = makes_traces
        self.dialect = dialect
        self._readings = readings
        self._stall_timeout_s = stall_timeout_s
        self._stream_interval = stream_interval
        self._permissive_fields = permissive_fields
        self._trusts_templates = trust_request_chat_template
        self._small = asyncio.Lock()
        self._threads = named_pool("legato-prepare", 2)

    def use(self, engine: Engine, client: EngineClient) -> None:
        """Serve from this engine from now on."""
        self.client = client
        self.inputs = engine.inputs
        self.metrics = engine.metrics
        self._grammars = engine.grammars
        self.tokenizer = engine.tokenizer
        self.model_names = engine.model_names
        self._fingerprint = engine.fingerprint

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def trouble(self) -> str | None:
        """Why the engine is not alive, None when it is."""
        return self.client.trouble(self._stall_timeout_s)

    def admit(self) -> None:
        """QueueFullError (503) unless the server takes new requests."""
        if self.draining:
            raise QueueFullError("the server is shutting down", status=503, retry_after_s=5)
        if (trouble := self.trouble()) is not None:
            raise QueueFullError(trouble, status=503, retry_after_s=5)

    def model_name(self, asked: str | None) -> str:
        """The name to answer with. RequestError (404) for a model that is not served here."""
        if asked is None:
            return self.model_names[0]
        if asked not in self.model_names:
            names = ", ".join(self.model_names)
            raise RequestError(
                f"the model {asked[:128]!r} is not served here; served: {names}", param="model", code="model_not_found"
            )
        return asked

    async def prepare(self, make: Callable[[bytes], _T], data: bytes) -> _T:
        """`make` of a body, so that streams do not stall meanwhile: of a large one, or one that may bring a template,
        in a thread; of small ones one in each turn of the event loop, however many come at once.
        """
        if len(data) <= LARGE_BODY and not self._trusts_templates:
            async with self._small:
                made = make(data)
                await asyncio.sleep(0)  # whoever waits for the lock gets it in the next turn
            return made
        return await asyncio.get_running_loop().run_in_executor(self._threads, make, data)

    async def with_grammars(self, generation: Generation) -> Generation:
        """The same once the grammars of its requests are compiled. RequestError where one cannot be used."""
        requests = await self._grammars.all_compiled(generation.requests)
        return replace(generation, requests=requests)

    def chat(self, arrival_s: float, data: bytes) -> Generation:
        """A body of /v1/chat/completions, ready to run. RequestError names what is wrong. Any thread."""
        ignored = self.unknown_fields()
        body = parse_chat(data, ignored)
        reply = self._reply(body, chat=True)
        params = body.sampling(self.inputs.defaults)
        use = body.tool_use(ignored)
        params = replace(params, grammar=self.dialect.grammar(use, params.grammar))
        talk, arguments = body.talk(ignored), self.template_arguments(body, use)
        arguments["add_special_tokens"] = body.add_special_tokens
        prompt = self._truncated(self.inputs.chat(talk, **arguments), body, params)
        hints = body.hints()
        if hints and body.truncate_prompt_tokens is not None:
            raise RequestError("cache_control is not supported with truncate_prompt_tokens", param="cache_control")
        reasoning = None if body.continue_final_message else self.dialect.reasoning_after(prompt)
        try:
            request = self.inputs.request(
                prompt,
                params,
                param="messages",
                default_max_tokens=self.inputs.defaults.max_tokens,
                arrival_s=arrival_s,
                cache_salt=body.cache_salt,
                breakpoints=self.inputs.breakpoints(prompt, talk, hints, **arguments),
                reasoning=reasoning,
                shown_token_ids=self.dialect.shown_token_ids(use),
                service=body.service(),
                beam=body.beam(),
            )
        except RequestError as error:
            raise body.named(error) from None
        return Generation(
            self.client,
            self.tokenizer,
            reply,
            [request],
            body.style(self._stream_interval),
            [self.inputs.final_message(talk)] if body.echo else None,
            ignored or (),
            partial(self.dialect.reader, use, reasoning, show_reasoning=body.include_reasoning),
            self._readings,
        )

    def completion(self, arrival_s: float, data: bytes) -> Generation:
        """A body of /v1/completions, ready to run; one request per prompt. RequestError as above. Any thread."""
        ignored = self.unknown_fields()
        body = parse_completion(data, ignored)
        reply = self._reply(body, chat=False)
        params = body.sampling(self.inputs.defaults)
        requests, echoes = [], []
        for given in body.prompts():
            added = isinstance(given, str) and body.add_special_tokens
            prompt = self.inputs.encode(given, add_special_tokens=added) if isinstance(given, str) else given
            prompt = self._truncated(prompt, body, params)
            if body.echo:
                echoes.append(self.inputs.echo(prompt, whole=not added))
            requests.append(
                self.inputs.request(
                    prompt,
                    params,
                    default_max_tokens=self.inputs.defaults.max_tokens or DEFAULT_COMPLETION_TOKENS,
                    arrival_s=arrival_s,
                    cache_salt=body.cache_salt,
                    breakpoints=body.breakpoints(len(prompt)),
                    service=body.service(),
                    beam=body.beam(),
                )
            )
        return Generation(
            self.client,
            self.tokenizer,
            reply,
            requests,
            body.style(self._stream_interval),
            echoes or None,
            ignored or (),
        )

    def unknown_fields(self) -> list[str] | None:
        """For the names of a body's unknown fields, if they are let pass; None: they are errors."""
        return [] if self._permissive_fields else None

    def template_arguments(self, body: TemplateFields, use: ToolUse) -> dict[str, Any]:
        """How a talk becomes a prompt. RequestError for a template of the request's own, unless they are trusted."""
        if body.chat_template is not None and not self._trusts_templates:
            raise RequestError(
                "chat_template is taken only by a server with --trust-request-chat-template",
                param="chat_template",
                code="unsupported_parameter",
            )
        tools = [tool.definition for tool in use.offered]
        format = self.dialect.format if tools else self.dialect.written  # what could not be read is not asked for
        return {"tools": tools, "tool_format": format, **body.template_arguments()}

    def _truncated(self, prompt: list[int], body: GenerateBody, params: SamplingParams) -> list[int]:
        side = body.truncation_side or "left"
        return self.inputs.truncated(prompt, body.truncate_prompt_tokens, side, params.max_tokens)

    def _reply(self, body: GenerateBody, *, chat: bool) -> Reply:
        """`request_id` is a label: two requests that run at once may share one."""
        return Reply(
            chat=chat,
            id=f"{'chatcmpl' if chat else 'cmpl'}-{body.request_id or secrets.token_hex(12)}",
            created=int(time.time()),
            model=self.model_name(body.model),
            fingerprint=self._fingerprint,
        )
