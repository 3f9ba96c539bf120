"""A record of traffic for `legato simulate`: lengths, timings and which prompts begin alike. Never text.

One JSON object a line for each choice: at_s (arrival, from the start of the record), prompt_tokens, cached_tokens,
output_tokens, finish, ttft_s and e2e_s of the whole request (ttft_s: null without a token), and hash_ids: one number
for each hash_size tokens of the prompt and all before them; the priority, and a name for the tenant. Hashes and names
are keyed with a secret that is drawn at each start and kept nowhere, so they say which prompts of one run share a
beginning, which requests a tenant, and nothing else.
"""

import json
import logging
import secrets
import time
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from legato.core.errors import ConfigError
from legato.core.threads import NamedThread
from legato.engine.timeline import Timeline

__all__ = ["TrafficRecorder"]

log = logging.getLogger(__name__)

HASH_SIZE = 64  # tokens


class TrafficRecorder:
    """Appends to a file, from a thread of its own: the engine only puts what ended into a queue.

    A file that can no longer be written ends the record with a warning, not the server.
    """

    def __init__(self, path: str) -> None:
        """ConfigError where the file cannot be opened."""
        try:
            self._file = Path(path).expanduser().open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"record_traffic: {path}: {error.strerror}") from None
        self._start_s = time.monotonic()
        self._secret = secrets.token_bytes(16)
        self._ended: SimpleQueue[Timeline | None] = SimpleQueue()
        self._thread = NamedThread("legato-traffic", self._write)
        self._thread.start()

    def ended(self, origin: object, timeline: Timeline) -> None:
        """A request has ended as a whole. Called in the engine thread."""
        self._ended.put(timeline)

    def close(self) -> None:
        """Write what has ended, and close the file."""
        self._ended.put(None)
        self._thread.join()

    def _write(self) -> None:
        try:
            with self._file:
                while (timeline := self._ended.get()) is not None:
                    self._file.writelines(json.dumps(line) + "\n" for line in self._lines(timeline))
                    if self._ended.empty():
                        self._file.flush()
        except OSError as error:
            log.warning("record_traffic: %s: %s; nothing more is recorded", self._file.name, error.strerror)
            while self._ended.get() is not None:
                pass

    def _lines(self, timeline: Timeline) -> Iterator[dict[str, Any]]:
        prompt, arrival_s, first_s = timeline.request.prompt, timeline.arrival_s, timeline.first_token_s
        hash_ids = list(self._hash_ids(array("i", prompt)))
        for output_tokens, finish in zip(timeline.num_tokens, timeline.finishes, strict=True):
            yield {
                "at_s": round(arrival_s - self._start_s, 6),
                "prompt_tokens": len(prompt),
                "cached_tokens": timeline.num_cached,
                "output_tokens": output_tokens,
                "finish": str(finish),
                "ttft_s": None if first_s is None else round(first_s - arrival_s, 6),
                "e2e_s": round(timeline.end_s - arrival_s, 6),
                "hash_size": HASH_SIZE,
                "hash_ids": hash_ids,
                "priority": timeline.request.service.priority,
                "tenant": self._name(timeline.request.service.tenant),
            }

    def _name(self, tenant: str) -> str:
        """The same for the same tenant within a run, and not its name. Empty where there is none."""
        return blake2b(tenant.encode(), digest_size=6, key=self._secret).hexdigest() if tenant else ""

    def _hash_ids(self, prompt: "array[int]") -> Iterator[int]:
        digest = b""
        for start in range(0, len(prompt), HASH_SIZE):
            block = digest + prompt[start : start + HASH_SIZE].tobytes()
            digest = blake2b(block, digest_size=6, key=self._secret).digest()
            yield int.from_bytes(digest, "little")
