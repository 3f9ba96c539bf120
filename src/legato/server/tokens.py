"""/tokenize and /detokenize: exactly the tokens that a completion or a chat would get."""

from collections.abc import Sequence
from typing import Any

from legato.core.errors import RequestError
from legato.protocol.tokens import parse_detokenize, parse_tokenize
from legato.server.state import ServerState

__all__ = ["detokenize", "tokenize"]


def tokenize(state: ServerState, data: bytes) -> tuple[dict[str, Any], Sequence[str]]:
    """The answer to a body of /tokenize, and its unknown fields. RequestError names what is wrong. Any thread."""
    ignored = state.unknown_fields()
    body = parse_tokenize(data, ignored)
    state.model_name(body.model)
    if body.prompt is not None:
        tokens = state.inputs.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        arguments = state.template_arguments(body, body.tool_use(ignored))
        tokens = state.inputs.chat(body.talk(ignored), add_special_tokens=body.add_special_tokens is True, **arguments)
    texts = None
    if body.return_token_strs:
        texts = [state.tokenizer.token_bytes(token).decode(errors="replace") for token in tokens]
    sizes = {"count": len(tokens), "max_model_len": state.inputs.max_model_len}
    return {**sizes, "tokens": tokens, "token_strs": texts}, ignored or ()


def detokenize(state: ServerState, data: bytes) -> tuple[dict[str, Any], Sequence[str]]:
    """The same for /detokenize: the text with its control tokens. RequestError as above. Any thread."""
    ignored = state.unknown_fields()
    body = parse_detokenize(data, ignored)
    state.model_name(body.model)
    if body.tokens and not 0 <= min(body.tokens) <= max(body.tokens) < state.inputs.vocab_size:
        raise RequestError(
            f"tokens holds a token id outside the vocabulary (0 to {state.inputs.vocab_size - 1})",
            param="tokens",
            code="invalid_token_id",
        )
    return {"prompt": state.tokenizer.decode(body.tokens, skip_special_tokens=False)}, ignored or ()
