"""The strict provider that models are tested against: it refuses what the real API refuses, and notices a hang-up."""

import json
import os
import socket
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

import pytest

from tests.kit.providers.llama import Llama
from tests.kit.providers.openai import Provider
from tests.kit.providers.openai_rules import fault
from tests.kit.providers.script import Stall

USER = {"role": "user", "content": "hello"}


def call(call_id: str = "c1", arguments: str = "{}", name: str = "search") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str = "c1", content: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


GOOD = {
    "a question": [USER],
    "an answer": [USER, {"role": "assistant", "content": "hi"}, USER],
    "a call and its result": [USER, calling(call()), result(), USER],
    "two calls answered in any order": [USER, calling(call("a"), call("b")), result("b"), result("a")],
    "an empty question": [{"role": "user", "content": ""}],
}
BAD = {
    "no messages": ([], "empty array"),
    "an unknown role": ([{"role": "robot", "content": "x"}], "Invalid value: 'robot'"),
    "a call without a result": ([USER, calling(call())], "did not have response messages: c1"),
    "a call answered in part": ([USER, calling(call("a"), call("b")), result("a"), USER], "response messages: b"),
    "a result too late": ([USER, calling(call()), USER, result()], "did not have response messages: c1"),
    "a result without a call": ([USER, result()], "must be a response to a preceeding message"),
    "two results for a call": ([USER, calling(call()), result(), result()], "must be a response to a preceeding"),
    "one id twice": ([USER, calling(call("a"), call("a")), result("a"), result("a")], "Duplicate value"),
    "one id in two answers": ([USER, calling(call()), result(), calling(call()), result()], "Duplicate value"),
    "no content": ([{"role": "user", "content": None}], "expected a string, got null"),
    "an empty answer": ([USER, {"role": "assistant", "content": ""}], "empty string"),
    "an empty result": ([USER, calling(call()), result(content="")], "empty string"),
    "an empty list of calls": ([USER, calling()], "empty array"),
    "bad arguments": ([USER, calling(call(arguments='{"q')), result()], "expected a JSON object"),
    "arguments that are no object": ([USER, calling(call(arguments="[1]")), result()], "expected a JSON object"),
    "a bad name": ([USER, calling(call(name="no such")), result()], "does not match pattern"),
    "calls of the user": ([{**calling(call()), "role": "user"}], "only allowed in assistant messages"),
}


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD)
def test_a_good_history_is_accepted(messages: list[dict[str, Any]]):
    assert fault({"model": "m", "messages": messages}) is None


@pytest.mark.parametrize(("messages", "told"), BAD.values(), ids=BAD)
def test_a_bad_history_is_refused_in_the_words_of_the_api(messages: list[dict[str, Any]], told: str):
    assert told in (fault({"model": "m", "messages": messages}) or "")


def test_bad_tools_are_refused():
    assert "empty array" in (fault({"model": "m", "messages": [USER], "tools": []}) or "")
    assert "only allowed when" in (fault({"model": "m", "messages": [USER], "tool_choice": "auto"}) or "")
    tool = {"type": "function", "function": {"name": "a b", "parameters": {"type": "object"}}}
    assert "does not match pattern" in (fault({"model": "m", "messages": [USER], "tools": [tool]}) or "")
    tool = {"type": "function", "function": {"name": "a", "parameters": {}}}
    assert "Invalid schema" in (fault({"model": "m", "messages": [USER], "tools": [tool]}) or "")


def post(provider: Provider, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(provider.base_url + "/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)


def test_a_refused_request_uses_up_no_answer():
    with Provider("Hello") as provider:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(provider, {"model": "m", "messages": [USER, result()]})
        with caught.value as error:
            assert error.code == 400
            assert json.load(error)["error"]["type"] == "invalid_request_error"
        assert post(provider, {"model": "m", "messages": [USER]})["choices"][0]["message"]["content"] == "Hello"
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(provider, {"model": "m", "messages": [USER]})
        with caught.value as error:
            assert "not in the script" in json.load(error)["error"]["message"]


def test_a_hang_up_is_noticed_at_once_and_only_in_the_middle():
    with Provider(["Once", Stall()], "Hello") as provider:
        body = json.dumps({"model": "m", "messages": [USER], "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        address = ("127.0.0.1", int(provider.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=5) as client:
            client.sendall(head + body)
            assert client.recv(1000)
            assert not provider.exchanges[0].closed.is_set()
        closed_at = time.monotonic()
        assert provider.exchanges[0].closed.wait(5)
        assert provider.exchanges[0].hung_up
        assert abs((provider.exchanges[0].closed_at or 0) - closed_at) < 1
        with socket.create_connection(address, timeout=5) as client:
            client.sendall(head + body)
            assert client.recv(1000)
            assert provider.exchanges[1].ended.wait(5)
        assert provider.exchanges[1].closed.wait(5)
        assert not provider.exchanges[1].hung_up


def test_a_broken_script_fails_the_test():
    with pytest.raises(TypeError, match="cannot stand inside"):
        with Provider([5]) as provider:  # type: ignore[list-item]
            with pytest.raises((ConnectionError, HTTPException)):
                post(provider, {"model": "m", "messages": [USER], "stream": True})


def test_the_inference_server_is_gone_after_its_end():
    with Llama() as server:
        assert (server.busy(), server.read(), server.written()) == (0, 0, 0)
        pid = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
