"""Serve an agent, talk to it over HTTP, stop it, read the receipt."""

import asyncio
import json
import os
import signal
import threading
from urllib.request import Request, urlopen

from safepoint import Agent, tool
from safepoint.agent import ToolContext
from safepoint.models.scripted import Call, ScriptedModel
from safepoint.server import Server, with_abandon_after
from safepoint.session import LocalHost


@tool
async def count_ships(ctx: ToolContext) -> str:
    """Count ships, which takes a while."""
    for number in range(1, 1000):
        ctx.progress(f"ship {number}", number / 1000)
        await asyncio.sleep(0.05)  # a stop interrupts this await
    return "999 ships"


model = ScriptedModel(["I count the ships. ", Call("count_ships")])
agent = with_abandon_after(Agent(model, tools=[count_ships], name="keeper"), after=5)


def call(method: str, url: str, body: object = None, accept: str = "application/json") -> str:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"accept": accept}, method=method), timeout=10) as answer:
        return str(answer.read().decode())


def visit(url: str) -> None:
    print(f"Safepoint is at {url}")
    session = f"{url}/api/sessions/{json.loads(call('POST', f'{url}/api/sessions', {}))['id']}"
    turn = f"{session}/turns/{json.loads(call('POST', f'{session}/messages', {'text': 'How many?'}))['id']}"
    with urlopen(f"{session}/events", timeout=10) as events:
        for line in events:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if event["kind"] == "progress_made" and event["message"] == "ship 3":
                ack = json.loads(call("POST", f"{turn}/stop", {"reason": "that is enough"}))
                print(f"Stop! The answer comes at once: {ack['status']}, {ack['message']}")
            if event["kind"] == "turn_ended":
                print(f"Later the turn ends: {event['outcome']['status']}. The receipt:")
                break
    print(call("GET", f"{turn}/receipt", accept="text/plain"))
    os.kill(os.getpid(), signal.SIGTERM)  # the server shuts down in order


server = Server(LocalHost(agent), port=0, started=lambda url: threading.Thread(target=visit, args=[url]).start())
asyncio.run(server.run())
print("The server has ended.")
