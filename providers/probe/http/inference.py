"""The smallest real inference of each server, and what an answer with content looks like.

Does: write requests and judge documents. Does not: send anything.
Invariant: every function takes any document whatever and raises nothing; an unknown shape is a wrong one.
"""

from __future__ import annotations

import math
from typing import Any, Final
from urllib.parse import quote

import msgspec

from providers._shared.presets import Generation
from providers._shared.torchserve import field

#: Most values that are made up for one input of Triton: an image of 1024 x 1024 x 3 is too large to send at each look.
_VALUES_MAX: Final = 262_144


def request_for(generation: Generation, model: str | None) -> tuple[str, bytes]:
    """Path and JSON body of one generated token, for the servers whose request does not depend on the model."""
    match generation:
        case Generation.COMPLETIONS:
            named = {} if model is None else {"model": model}
            return "/v1/completions", msgspec.json.encode({**named, "prompt": "a", "max_tokens": 1})
        case Generation.TGI:
            parameters = {"max_new_tokens": 1, "details": True}
            return "/generate", msgspec.json.encode({"inputs": "a", "parameters": parameters})
        case Generation.TORCHSERVE:
            return f"/predictions/{quote(model or '', safe='')}", msgspec.json.encode({"data": "a"})
        case Generation.TRITON:
            return f"/v2/models/{quote(model or '', safe='')}/infer", b"{}"


def triton_request(metadata: Any, model: str) -> tuple[str, bytes, str]:
    """Path and body from a model's metadata, and why there is none.

    A model that takes `text_input` is a language model behind the generate extension. Any other gets ones in all its
    inputs, with every open dimension 1.
    """
    name = quote(model, safe="")
    inputs = field(metadata, "inputs")
    if not isinstance(inputs, list) or not inputs:
        return "", b"", "tells no inputs"
    if any(field(one, "name") == "text_input" for one in inputs):
        asked: dict[str, Any] = {"text_input": "a"}
        if any(field(one, "name") == "max_tokens" for one in inputs):
            asked["max_tokens"] = 1
        return f"/v2/models/{name}/generate", msgspec.json.encode(asked), ""
    filled = []
    for one in inputs:
        shape, kind = field(one, "shape"), str(field(one, "datatype"))
        if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
            return "", b"", "tells an input without a shape"
        sizes = [max(1, size) for size in shape]
        if (count := math.prod(sizes)) > _VALUES_MAX:
            return "", b"", "has an input too large to make up: give generate_path and generate_body"
        value: Any = {"BYTES": "a", "BOOL": True}.get(kind, 1)
        filled.append({"name": field(one, "name"), "shape": sizes, "datatype": kind, "data": [value] * count})
    return f"/v2/models/{name}/infer", msgspec.json.encode({"inputs": filled}), ""


def what_is_wrong(body: bytes, document: Any, generation: Generation, *, own: bool) -> str:
    """Why a 200 is no proof of an inference; empty when it is. `own`: a user's request, answered in any shape."""
    if not body.strip():
        return "an empty answer"
    if isinstance(document, dict) and document.get("error"):
        return f"an error in the answer: {str(document['error'])[:100]!r}"
    if own or generation is Generation.TORCHSERVE:  # a handler answers what it likes
        return ""
    good = {
        Generation.COMPLETIONS: _has_choice,
        Generation.TGI: _has_generated,
        Generation.TRITON: _has_output,
    }[generation](document)
    return "" if good else f"no content in the answer: {body[:100].decode(errors='replace')!r}"


def served_models(document: Any) -> list[str]:
    """The names that /v1/models lists."""
    data = field(document, "data")
    names = [field(one, "id") for one in data] if isinstance(data, list) else []
    return [name for name in names if isinstance(name, str) and name]


def _has_choice(document: Any) -> bool:
    """Text, or a count of generated tokens: a lone end token or half a character has no text."""
    choices = field(document, "choices")
    if not isinstance(choices, list) or not choices:
        return False
    text = field(choices[0], "text")
    if text is None:
        text = field(field(choices[0], "message"), "content")
    if isinstance(text, str) and text:
        return True
    tokens = field(field(document, "usage"), "completion_tokens")
    return isinstance(text, str) and isinstance(tokens, int) and tokens >= 1


def _has_generated(document: Any) -> bool:
    one = document[0] if isinstance(document, list) and document else document
    text, tokens = field(one, "generated_text"), field(field(one, "details"), "generated_tokens")
    return isinstance(text, str) and (bool(text) or (isinstance(tokens, int) and tokens >= 1))


def _has_output(document: Any) -> bool:
    if isinstance(field(document, "text_output"), str):
        return True
    outputs = field(document, "outputs")
    return isinstance(outputs, list) and bool(outputs) and all(bool(field(one, "data")) for one in outputs)
