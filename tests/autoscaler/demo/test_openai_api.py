import msgspec
import pytest

from autoscaler.demo.openai_api import (
    INPUT_TOKENS_HEADER,
    Asked,
    BadRequestError,
    Reply,
    read_request,
    words_in,
)


def asked_by(body: dict[str, object], headers: dict[str, str] | None = None, *, chat: bool = False) -> Asked:
    return read_request(msgspec.json.encode(body), headers or {}, chat=chat, model="m")


def test_the_prompt_need_not_be_sent_to_have_its_length() -> None:
    assert asked_by({"prompt": "x", "max_tokens": 3}, {INPUT_TOKENS_HEADER: "7000"}).input_tokens == 7000
    assert asked_by({"prompt": "x", "input_tokens": 50}).input_tokens == 50
    assert asked_by({"prompt": "one two three"}).input_tokens == 3
    messages = [{"role": "system", "content": "a b"}, {"role": "user", "content": "c"}]
    assert asked_by({"messages": messages}, chat=True).input_tokens == 3


def test_what_is_left_out_is_the_apis_default() -> None:
    assert asked_by({}) == Asked(chat=False, stream=False, input_tokens=1, output_tokens=16)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"max_tokens": -1}', 400),
        (b'{"max_tokens": "many"}', 400),
        (b'{"input_tokens": 0.5}', 400),
        (b'{"model": "other"}', 404),
    ],
)
def test_a_bad_request_has_vllms_status(body: bytes, status: int) -> None:
    with pytest.raises(BadRequestError) as told:
        read_request(body, {}, chat=False, model="m")
    assert told.value.status == status


@pytest.mark.parametrize("chat", [True, False])
def test_an_answer_carries_as_many_words_as_tokens(*, chat: bool) -> None:
    reply = Reply(Asked(chat, stream=True, input_tokens=9, output_tokens=5), "id", "m", 1)
    assert words_in(reply.event(3, finished=False) + reply.event(2, finished=True)) == 5
    assert words_in(reply.whole()) == 5
    assert msgspec.json.decode(reply.whole())["usage"]["completion_tokens"] == 5
    assert words_in(reply.nonsense()) == 0


def test_only_the_last_event_says_why_it_ended() -> None:
    reply = Reply(Asked(chat=False, stream=True, input_tokens=1, output_tokens=2), "id", "m", 1)
    reasons = [
        msgspec.json.decode(event.removeprefix(b"data: "))["choices"][0]["finish_reason"]
        for event in (reply.event(1, finished=False), reply.event(1, finished=True))
    ]
    assert reasons == [None, "length"]
