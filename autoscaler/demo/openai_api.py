"""The part of the OpenAI API that the stand-in speaks: what a request asks for, what an answer looks like.

It reads bodies and writes documents and server-sent events. It knows no socket and no clock. A stand-in's
token is one short word, so a client counts tokens by counting words.

Invariant: every answer to a well-formed request carries as many words as tokens were generated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

INPUT_TOKENS_HEADER = "X-Input-Tokens"
PROBE_HEADER = "X-Autoscaler-Probe"
DONE = b"data: [DONE]\n\n"
_DEFAULT_MAX_TOKENS = 16  # the API's own default for completions
_WORD = " tok"


class BadRequestError(ValueError):
    """The body is not a request that can be served; `status` is what the API answers."""

    def __init__(self, message: str, status: int = 400) -> None:
        """Keep the status beside the message."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """What one request asks for."""

    chat: bool
    stream: bool
    input_tokens: int
    output_tokens: int


def read_request(body: bytes, headers: Mapping[str, str], *, chat: bool, model: str) -> Asked:
    """Understand a request. The prompt's length is told by header or field, else its words count.

    Raises:
        BadRequestError: with the status that vLLM gives.
    """
    try:
        fields = msgspec.json.decode(body or b"{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BadRequestError(f"body: {error}") from error
    named = fields.get("model", model)
    if named != model:
        raise BadRequestError(f"The model `{named}` does not exist.", status=404)
    told = headers.get(INPUT_TOKENS_HEADER) or fields.get("input_tokens")
    tokens_in = _count("input tokens", told) if told is not None else _words(fields, chat=chat)
    asked_out = fields.get("max_tokens") or fields.get("max_completion_tokens") or _DEFAULT_MAX_TOKENS
    return Asked(chat, fields.get("stream") is True, tokens_in, _count("max_tokens", asked_out))


@dataclass(frozen=True, slots=True)
class Reply:
    """The documents that answer one request."""

    asked: Asked
    ident: str
    model: str
    created: int

    def event(self, tokens: int, *, finished: bool) -> bytes:
        """One server-sent event that carries `tokens` words."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if finished else None}
        text = _WORD * tokens
        choice |= {"delta": {"content": text}} if self.asked.chat else {"text": text}
        kind = "chat.completion.chunk" if self.asked.chat else "text_completion"
        return b"data: " + self._document(kind, [choice]) + b"\n\n"

    def whole(self) -> bytes:
        """The answer of a request that does not stream."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        text = _WORD * self.asked.output_tokens
        choice |= {"message": {"role": "assistant", "content": text}} if self.asked.chat else {"text": text}
        usage = {
            "prompt_tokens": self.asked.input_tokens,
            "completion_tokens": self.asked.output_tokens,
            "total_tokens": self.asked.input_tokens + self.asked.output_tokens,
        }
        return self._document("chat.completion" if self.asked.chat else "text_completion", [choice], usage=usage)

    def nonsense(self) -> bytes:
        """An answer that is well-formed, says 200, and has no choice in it."""
        document = self._document("error", [])
        return b"data: " + document + b"\n\n" + DONE if self.asked.stream else document

    def _document(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
        known = {"id": self.ident, "object": kind, "created": self.created, "model": self.model}
        return msgspec.json.encode({**known, "choices": choices, **more})


def words_in(events: bytes) -> int:
    """How many tokens of a stand-in are in these raw events."""
    return events.count(_WORD.encode())


def models(model: str) -> bytes:
    """The list of models, of which there is one."""
    return msgspec.json.encode({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "stand-in"}]})


def error(message: str, status: int) -> bytes:
    """An error document, as vLLM writes it."""
    return msgspec.json.encode({"error": {"message": message, "type": "error", "code": status}})


def _count(what: str, told: object) -> int:
    try:
        count = int(str(told))
    except ValueError:
        count = 0
    if count < 1:
        raise BadRequestError(f"{what}: found {told!r}, allowed is a whole number from 1")
    return count


def _words(fields: Mapping[str, Any], *, chat: bool) -> int:
    if not chat:
        return max(1, len(str(fields.get("prompt", "")).split()))
    messages = fields.get("messages")
    texts = [str(m.get("content", "")) for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    return max(1, sum(len(text.split()) for text in texts))
