"""Owns the tests of the JSON API, over a real server: every route, and every way to be refused."""

import asyncio
from typing import Any

import pytest

from safepoint.agent import Agent, ToolContext, tool
from safepoint.server import Limits
from safepoint.session import LocalHost, MemoryStore, StoreError
from tests.kit.servers import ControlledModel, Served, serving, serving_host
from tests.kit.stores import GatedStore


def talker() -> tuple[Agent, ControlledModel]:
    faucet = ControlledModel()
    return Agent(faucet, name="talker"), faucet


async def test_a_message_goes_through_a_turn_and_its_outcome_can_be_read():
    agent, faucet = talker()
    async with serving(agent) as served:
        assert (await served.call("GET", "/api/agents")).json() == ["talker"]
        session = await served.session("s1")
        assert session == "s1"
        turn = await served.send(session, "hi", turn_id="t1")
        assert turn == "t1"
        faucet.end("hello ", "you")
        ended = await served.until(session, "turn_ended")
        assert (ended["turn_id"], ended["outcome"]["status"]) == ("t1", "completed")
        seen = await served.turn(session, turn)
        assert (seen["status"], seen["outcome"]["value"]["text"]) == ("completed", "hello you")
        listed = (await served.call("GET", "/api/sessions")).json()
        assert [(one["id"], one["agent"], one["live"], one["turns"]) for one in listed] == [("s1", "talker", True, [])]


async def test_stop_answers_before_the_outcome_is_there():
    _agent, faucet = talker()
    released, reached = asyncio.Event(), asyncio.Event()

    @tool(on_abort="cooperate")
    async def deaf() -> str:
        """Go on until the test lets go."""
        reached.set()
        await released.wait()
        return "late"

    async with serving(Agent(faucet, tools=[deaf])) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.call("deaf")
        await reached.wait()
        ack = await served.stop(session, turn, reason="enough")
        assert ack == {"status": "accepted", "level": "recorded", "message": "stops at NOW", "id": turn}
        assert (await served.turn(session, turn))["status"] == "stopping"
        assert (await served.stop(session, turn))["status"] == "already_stopping"
        refused = await served.call("GET", f"/api/sessions/{session}/turns/{turn}/receipt")
        assert (refused.status_code, "no receipt yet" in refused.text) == (409, True)
        released.set()
        ended = await served.until(session, "turn_ended")
        assert ended["outcome"]["status"] == "aborted"
        assert ended["outcome"]["reason"]["message"] == "enough"
        assert (await served.stop(session, turn))["status"] == "already_finished"


async def test_the_second_press_leaves_behind_what_does_not_end():
    faucet, released, reached = ControlledModel(), asyncio.Event(), asyncio.Event()

    @tool
    async def swallows() -> str:
        """Go on until the test lets go, whatever interrupts."""
        reached.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass
        return "late"

    async with serving(Agent(faucet, tools=[swallows])) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.call("swallows")
        await reached.wait()
        for wrong in (-1, "0", True, 1e9):
            path = f"/api/sessions/{session}/turns/{turn}/stop"
            refused = await served.call("POST", path, {"abandon": wrong})
            assert refused.status_code == 422
            assert "abandon" in refused.json()["error"]
        assert (await served.turn(session, turn))["status"] == "running"
        await served.stop(session, turn, reason="enough")
        ack = await served.stop(session, turn, abandon=0)
        assert ack["status"] == "already_stopping"
        assert ack["message"] == "stops at NOW; what has not ended by then is left behind"
        ended = await served.until(session, "turn_ended")
        assert ended["outcome"]["status"] == "aborted"
        left = [one for one in ended["outcome"]["receipt"]["entries"] if one["fate"] == "still_running"]
        assert [one["name"].rpartition("/")[2] for one in left] == ["swallows"]
        assert "test_api.py" in left[0]["where"]
        released.set()


async def test_the_receipt_is_json_or_text():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.say("half")
        await served.until(session, "text_streamed")
        await served.stop(session, turn, reason="enough")
        await served.until(session, "turn_ended")
        path = f"/api/sessions/{session}/turns/{turn}/receipt"
        assert (await served.call("GET", path)).json()["reason"]["message"] == "enough"
        told = (await served.call("GET", path, headers={"accept": "text/plain"})).text
        assert told.startswith("Stopped: user: enough")


async def test_a_completed_turn_has_no_receipt():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.end("done")
        await served.until(session, "turn_ended")
        answer = await served.call("GET", f"/api/sessions/{session}/turns/{turn}/receipt")
        assert (answer.status_code, "nothing was stopped" in answer.text) == (409, True)


async def test_a_stop_at_a_safe_point_lets_the_tool_finish():
    faucet, released, reached = ControlledModel(), asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work until the test lets go."""
        reached.set()
        await released.wait()
        return "done"

    async with serving(Agent(faucet, tools=[work])) as served:
        session = await served.session()
        turn = await served.send(session)
        faucet.call("work")
        await reached.wait()
        assert (await served.stop(session, turn, at="AFTER_TOOLS"))["message"] == "stops at AFTER_TOOLS"
        released.set()
        assert (await served.until(session, "tool_ended"))["status"] == "completed"
        assert (await served.until(session, "turn_ended"))["outcome"]["status"] == "aborted"
        assert faucet.asked == 1


async def test_a_question_is_answered_once():
    faucet = ControlledModel()

    @tool
    async def ask(ctx: ToolContext) -> str:
        """Ask."""
        return await ctx.ask_user("which colour?")

    async with serving(Agent(faucet, tools=[ask])) as served:
        session = await served.session()
        await served.send(session)
        faucet.call("ask")
        question = (await served.until(session, "question_asked"))["question_id"]
        path = f"/api/sessions/{session}/answers"
        first = await served.call("POST", path, {"question_id": question, "text": "blue"})
        assert (first.status_code, first.json()) == (200, {"accepted": True})
        assert (await served.until(session, "tool_ended"))["content"] == "blue"
        again = await served.call("POST", path, {"question_id": question, "text": "red"})
        assert again.status_code == 409
        faucet.end("done")
        await served.until(session, "turn_ended")


async def test_a_turn_that_waits_can_be_changed_and_taken_out():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        await served.send(session, "first", turn_id="t1")
        await served.send(session, "second", turn_id="t2")
        await served.send(session, "third", turn_id="t3")
        await served.until(session, "answer_started")
        turns = f"/api/sessions/{session}/turns"
        assert (await served.call("PATCH", f"{turns}/t2", {"text": "2nd"})).status_code == 200
        assert (await served.call("DELETE", f"{turns}/t3")).status_code == 204
        assert (await served.call("PATCH", f"{turns}/t1", {"text": "no"})).status_code == 409
        assert (await served.call("DELETE", f"{turns}/t1")).status_code == 409
        await served.until(session, "turn_ended", turn_id="t3")
        live = (await served.call("GET", f"/api/sessions/{session}")).json()["turns"]
        assert [(turn["id"], turn["status"]) for turn in live] == [("t1", "running"), ("t2", "queued")]
        faucet.end("one")
        faucet.end("two")
        await served.until(session, "turn_ended", turn_id="t2")
        assert (await served.call("DELETE", f"{turns}/t3")).status_code == 409
        assert faucet.asked == 2


async def test_a_stopped_turn_goes_on_or_is_forgotten():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        turn = await served.send(session)
        await served.until(session, "answer_started")
        await served.stop(session, turn)
        await served.until(session, "turn_ended")
        again = await served.call("POST", f"/api/sessions/{session}/turns/{turn}/continue")
        assert again.status_code == 202
        faucet.end("all of it")
        done = again.json()["id"]
        ended = await served.until(session, "turn_ended", turn_id=done)
        assert ended["outcome"]["value"]["text"] == "all of it"
        assert (await served.call("POST", f"/api/sessions/{session}/turns/{turn}/continue")).status_code == 409
        assert (await served.call("POST", f"/api/sessions/{session}/turns/{turn}/forget")).status_code == 409
        assert (await served.call("POST", f"/api/sessions/{session}/turns/{done}/forget")).status_code == 204
        await served.until(session, "turn_forgotten")


async def test_busy_is_said_only_to_who_wants_no_other_way():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        await served.send(session, turn_id="t1")
        await served.until(session, "answer_started")
        refused = await served.call("POST", f"/api/sessions/{session}/messages", {"text": "x", "when_busy": "reject"})
        assert (refused.status_code, "busy" in refused.json()["error"]) == (409, True)
        await served.send(session, "now!", when_busy="interrupt", turn_id="t2")
        ended = await served.until(session, "turn_ended", turn_id="t1")
        assert ended["outcome"]["reason"]["kind"] == "preempted"
        faucet.end("ok")
        await served.until(session, "turn_ended", turn_id="t2")


async def test_closing_a_session_ends_its_turns_and_it_can_be_opened_again():
    agent, _faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        turn = await served.send(session)
        await served.until(session, "answer_started")
        async with served.reading(session) as reader:
            assert (await served.call("DELETE", f"/api/sessions/{session}")).status_code == 204
            events = await reader.until("session_closed")
            assert [event["kind"] for _, event in events][-2:] == ["turn_ended", "session_closed"]
            assert await reader.last_word() == "closed"
        assert (await served.call("DELETE", f"/api/sessions/{session}")).status_code == 404
        assert (await served.session(session)) == session
        assert (await served.turn(session, turn))["status"] == "aborted"


async def test_what_is_not_on_the_disk_yet_is_answered_so():
    store = GatedStore()
    agent, faucet = talker()
    async with serving(agent, store) as served:
        session = await served.session("s")
        running, turns = await served.send(session), f"/api/sessions/{session}/turns"
        await served.send(session, turn_id="t2")
        await served.send(session, turn_id="t3")
        faucet.say("half")
        await served.until(session, "text_streamed")
        store.shut()
        ack = await served.stop(session, running)
        assert (ack["status"], ack["level"]) == ("accepted", "accepted")
        edited = await served.call("PATCH", f"{turns}/t2", {"text": "2nd"})
        removed = await served.call("DELETE", f"{turns}/t3")
        assert (edited.status_code, removed.status_code) == (200, 202)
        for answer in (ack, edited.json(), removed.json()):
            assert (answer["level"], answer["message"].endswith("(not recorded yet)")) == ("accepted", True)
        store.gate.set()


async def test_the_same_message_sent_again_gets_the_same_answer_and_another_one_a_conflict():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        messages = f"/api/sessions/{session}/messages"
        await served.send(session, "hello", turn_id="t")
        await served.until(session, "answer_started")
        again = await served.call("POST", messages, {"text": "hello", "turn_id": "t"})
        assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, "t", "running")
        faucet.end("ho")
        await served.until(session, "turn_ended")
        again = await served.call("POST", messages, {"text": "hello", "turn_id": "t"})
        assert (again.status_code, again.json()["id"], again.json()["status"]) == (202, "t", "completed")
        other = await served.call("POST", messages, {"text": "bye", "turn_id": "t"})
        assert (other.status_code, "had a turn" in other.text) == (409, True)
        assert faucet.asked == 1


async def test_looking_at_a_stored_session_does_not_open_it_and_shows_what_goes_on_with_a_turn():
    store = MemoryStore()
    async with serving(talker()[0], store) as served:
        session = await served.session("s")
        await served.send(session, turn_id="t")
        await served.until(session, "answer_started")
    before = list(store._logs["s"])
    async with serving(talker()[0], store) as served:
        assert (await served.call("GET", "/api/sessions/s")).json()["live"] is False
        turn = await served.turn("s", "t")
        assert (turn["status"], turn.get("continued_by")) == ("aborted", None)
        assert [event["kind"] for _, event in await served.all_events("s")][-1] == "session_closed"
        assert store._logs["s"] == before
    host = LocalHost(talker()[0], store, resume=True)
    async with serving_host(host) as served:
        await host.recover()
        turn = await served.turn("s", "t")
        assert turn["status"] in ("queued", "running")
        (goes_on,) = (await served.call("GET", "/api/sessions/s")).json()["turns"]
        assert turn["continued_by"] == goes_on["id"]
        assert (await served.stop("s", "t"))["status"] == "accepted"
        assert (await served.turn("s", goes_on["id"]))["status"] in ("stopping", "aborted")


async def test_how_far_down_a_stop_goes_can_be_said():
    agent, faucet = talker()
    host = LocalHost(agent)
    async with serving_host(host) as served:
        session = await served.session()
        turn = await served.send(session)
        await served.until(session, "answer_started")
        running = (await host.live(session)).turns[turn]
        scopes = []
        for body in ({"at": "SAFE_POINT"}, {"scope": "tree"}):
            await served.stop(session, turn, **body)
            scopes.append(running.stop_request.scope)
        assert scopes == ["root", "tree"]
        refused = await served.call("POST", f"/api/sessions/{session}/turns/{turn}/stop", {"scope": "branch"})
        assert refused.status_code == 422
        faucet.end("ho")


async def test_a_session_that_is_there_keeps_its_agent():
    agents = {"a": Agent(ControlledModel(), name="a"), "b": Agent(ControlledModel(), name="b")}
    async with serving_host(LocalHost(agents)) as served:
        assert (await served.call("POST", "/api/sessions", {"id": "s", "agent": "b"})).status_code == 201
        refused = await served.call("POST", "/api/sessions", {"id": "s", "agent": "a"})
        assert (refused.status_code, "it keeps that one" in refused.text) == (409, True)


NOTHING = "/api/sessions/nothing"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", NOTHING, None),
        ("DELETE", NOTHING, None),
        ("POST", f"{NOTHING}/messages", {"text": "x"}),
        ("POST", f"{NOTHING}/answers", {"question_id": "q", "text": "x"}),
        ("GET", f"{NOTHING}/events", None),
        ("GET", f"{NOTHING}/turns/t", None),
        ("PATCH", f"{NOTHING}/turns/t", {"text": "x"}),
        ("DELETE", f"{NOTHING}/turns/t", None),
        ("POST", f"{NOTHING}/turns/t/stop", {}),
        ("POST", f"{NOTHING}/turns/t/continue", None),
        ("POST", f"{NOTHING}/turns/t/forget", None),
        ("GET", f"{NOTHING}/turns/t/receipt", None),
        ("GET", "/api/sessions/there/turns/none", None),
        ("GET", "/api/sessions/there/turns/none/receipt", None),
        ("POST", "/api/sessions", {"agent": "nobody"}),
    ],
)
async def test_what_is_not_there_is_a_404_and_stays_away(method: str, path: str, body: Any):
    agent, _ = talker()
    async with serving(agent) as served:
        await served.session("there")
        before = await state(served)
        answer = await served.call(method, path, body)
        assert (answer.status_code, list(answer.json())) == (404, ["error"])
        assert await state(served) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/sessions", b"not json"),
        ("/api/sessions", b"[]"),
        ("/api/sessions", b'{"id": ""}'),
        ("/api/sessions", b'{"id": "../etc"}'),
        ("/api/sessions", b'{"id": "' + b"x" * 201 + b'"}'),
        ("/api/sessions", b'{"id": "a", "colour": "red"}'),
        ("/api/sessions", b'{"id": "\xff"}'),
        ("/api/sessions/there/messages", b""),
        ("/api/sessions/there/messages", b'{"text": "  "}'),
        ("/api/sessions/there/messages", b'{"text": 3}'),
        ("/api/sessions/there/messages", b'{"text": "\\ud800"}'),
        ("/api/sessions/there/messages", b'{"text": "x", "when_busy": "never"}'),
        ("/api/sessions/there/messages", b'{"text": "x", "deadline": 0}'),
        ("/api/sessions/there/messages", b'{"text": "x", "deadline": NaN}'),
        ("/api/sessions/there/messages", b'{"text": "x", "deadline": 1e9}'),
        ("/api/sessions/there/messages", b'{"text": "x", "turn_id": "a b"}'),
        ("/api/sessions/there/turns/t/stop", b'{"at": "LATER"}'),
        ("/api/sessions/there/turns/t/stop", b'{"at": "TURN_END"}'),
        ("/api/sessions/there/turns/t/stop", b'{"within": -1}'),
        ("/api/sessions/there/turns/t/stop", b'{"within": "soon"}'),
        ("/api/sessions/there/answers", b'{"question_id": "q"}'),
    ],
)
async def test_a_bad_body_is_a_422_that_says_where_and_changes_nothing(path: str, body: bytes):
    agent, _ = talker()
    async with serving(agent) as served:
        await served.session("there")
        before = await state(served)
        answer = await served.call("POST", path, content=body, headers={"content-type": "application/json"})
        assert (answer.status_code, list(answer.json())) == (422, ["error"])
        assert await state(served) == before


async def test_an_id_is_for_life():
    agent, faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        await served.send(session, turn_id="t1")
        faucet.end("one")
        await served.until(session, "turn_ended")
        before = await state(served)
        again = await served.call("POST", f"/api/sessions/{session}/messages", {"text": "x", "turn_id": "t1"})
        assert again.status_code == 409
        assert await state(served) == before


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "9" * 30, "\u00b2"])
async def test_an_event_number_that_is_none_is_a_422(number: str):
    agent, _ = talker()
    async with serving(agent) as served:
        session = await served.session()
        answer = await served.call("GET", f"/api/sessions/{session}/events", params={"after": number})
        assert answer.status_code == 422


async def test_a_method_that_does_not_fit_is_a_405():
    agent, _ = talker()
    async with serving(agent) as served:
        assert (await served.call("PUT", "/api/sessions")).status_code == 405


async def test_live_sessions_are_limited_and_stored_ones_are_not():
    agent, _ = talker()
    async with serving(agent, limits=Limits(sessions=2)) as served:
        await served.session("a")
        await served.session("b")
        refused = await served.call("POST", "/api/sessions", {"id": "c"})
        assert (refused.status_code, "2 sessions" in refused.text) == (429, True)
        assert await served.session("b") == "b"  # it is there: nothing more is asked for
        await served.call("DELETE", "/api/sessions/a")
        assert await served.session("c") == "c"


async def test_waiting_turns_are_limited():
    agent, _faucet = talker()
    async with serving(agent, limits=Limits(queued_turns=2)) as served:
        session = await served.session()
        for number in range(3):
            await served.send(session, turn_id=f"t{number}")
        before = await state(served)
        refused = await served.call("POST", f"/api/sessions/{session}/messages", {"text": "x"})
        assert (refused.status_code, "2 turns wait" in refused.text) == (429, True)
        assert await state(served) == before
        await served.call("DELETE", f"/api/sessions/{session}/turns/t2")
        await served.until(session, "turn_ended", turn_id="t2")
        assert await served.send(session, turn_id="t4") == "t4"


async def test_streams_are_limited_and_given_back():
    agent, _ = talker()
    async with serving(agent, limits=Limits(streams=1)) as served:
        session = await served.session()
        path = f"/api/sessions/{session}/events"
        async with served.reading(session) as reader:
            await reader.next()
            assert (await served.call("GET", path)).status_code == 429
        async with asyncio.timeout(10):
            while b"safepoint_streams 1.0" in (await served.call("GET", "/metrics")).content:
                pass
        async with served.reading(session) as reader:
            await reader.next()


async def test_a_server_that_drains_takes_no_new_work_and_still_stops():
    agent, _faucet = talker()
    async with serving(agent) as served:
        session = await served.session()
        turn = await served.send(session)
        await served.until(session, "answer_started")
        served.app.drain()
        refused = {
            "/api/sessions": {},
            f"/api/sessions/{session}/messages": {"text": "x"},
            f"/api/sessions/{session}/turns/{turn}/continue": {},
        }
        for path, body in refused.items():
            answer = await served.call("POST", path, body)
            assert (answer.status_code, "shutting down" in answer.text) == (503, True)
        assert (await served.call("GET", f"/api/sessions/{session}/events")).status_code == 503
        health = await served.call("GET", "/healthz")
        assert (health.status_code, health.json()) == (503, {"status": "draining"})
        assert (await served.stop(session, turn))["status"] == "accepted"


class BrokenStore(MemoryStore):
    """A store whose disk is full."""

    broken = False

    async def read(self, session: str, after: int = 0, limit: int = 1000) -> Any:
        if self.broken:
            raise StoreError("the disk is full")
        return await super().read(session, after, limit)


async def test_a_store_that_fails_is_a_503_and_no_crash():
    agent, _ = talker()
    store = BrokenStore()
    async with serving(agent, store) as served:
        store.broken = True
        answer = await served.call("POST", "/api/sessions", {"id": "new"})
        assert (answer.status_code, answer.json()) == (503, {"error": "the disk is full"})
        store.broken = False


async def state(served: Served) -> Any:
    """All there is: sessions, their turns, and how many events each has."""
    return (await served.call("GET", "/api/sessions")).json()
