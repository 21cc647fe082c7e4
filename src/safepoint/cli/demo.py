"""A demo agent that needs no key and no server. Knows nothing of the web.

Its model answers by keywords in the message, and its tools are of the kinds that do not stop in other frameworks.
"""

import asyncio
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import AsyncGenerator

from ..abort import AbortSignal
from ..agent.agent import Agent
from ..agent.context import ToolContext
from ..agent.model import AnswerEnded, CallDelta, Chunk, Model, ModelRequest, TextDelta, UsageReported
from ..agent.tool import AnyTool, tool
from ..messages import ToolResult, UserMessage
from ..process import run_process
from ..receipt import Usage

__all__ = ["TRY", "demo_agent"]

TRY = {
    "tell me a story": "a long answer: press Stop, or Esc Esc, in the middle of it",
    "search": "a slow search with progress, stopped at once",
    "dig": "a naive tool in a thread that never looks at the signal: interrupted wherever it is",
    "hash": "a tool stuck in C code for about six seconds: named, waited for, or abandoned",
    "build": "a process with children: the whole group ends",
    "research": "a sub-agent with tools of its own",
    "ask": "a question to you: stop withdraws it",
    "pay": "a tool that needs your approval: stop denies it",
    "everything": "several of them side by side",
}
STORY = (
    "## The lighthouse keeper\n\nOnce there was a lighthouse keeper who could not stop. *Every night* the"
    " lamp went round, and every night he thought: one more ship. He wrote down each of them:\n\n1. the "
    "grain ship from the south,\n2. the mail boat, late as always,\n3. a raft with two goats.\n\nOne "
    "evening a child knocked and asked: `why do you never rest?` He did not know what to say. So he "
    "showed her the **switch**, and she pressed it, and the sea went dark, and nothing bad happened at "
    "all. The ships had lamps of their own. In the morning they counted the ships together, and none was "
    "missing, and the book was complete down to the last line. From then on he slept at night, and the "
    "child kept the switch in her pocket, just in case.\n\n> Stopping is not failing.\n\nThe end, or as "
    "far as you let me come."
)


@tool(effects="read")
async def search(query: str, ctx: ToolContext) -> str:
    """Search slowly, page by page.

    Args:
        query: what to look for
    """
    for page in range(1, 11):
        ctx.progress(f"page {page} of 10", page / 10)
        await ctx.safe_point()
        await asyncio.sleep(0.6)
    return f"ten pages about {query}, of which the third was the best"


@tool
def dig(depth: int) -> str:
    """Dig in a thread, in plain Python, without looking at any signal."""
    dug = 0
    until = time.monotonic() + 8
    while time.monotonic() < until:
        dug += sum(range(500))
        time.sleep(0.01)
    return f"dug {depth} metres, and {dug} grains of sand"


@tool
def grind(rounds: int = 6) -> str:
    """Hash a password for some seconds: all of it in C, where no interrupt arrives."""
    took = []
    for _ in range(5):
        began = time.thread_time()  # CPU time of this thread: wall time on a busy machine would give too few rounds
        hashlib.pbkdf2_hmac("sha256", b"p", b"s", 20_000)
        took.append(time.thread_time() - began)
    per_second = 20_000 / min(took)
    return hashlib.pbkdf2_hmac("sha256", b"password", b"salt", int(per_second * rounds)).hex()[:16]


@tool
async def build(ctx: ToolContext) -> str:
    """Run a program that starts programs."""
    child = "import time; time.sleep(60)"
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(12)"
    result = await run_process([sys.executable, "-c", script], signal=ctx.signal)
    return f"the build ended with {result.returncode}"


@tool(effects="irreversible", requires_approval=True)
async def pay(amount: float) -> str:
    """Pay somebody. This cannot be taken back."""
    await asyncio.sleep(2)
    return f"paid {amount:.2f}"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask the person which colour it should be."""
    return await ctx.ask_user("Which colour should the switch be?")


class DemoModel:
    """A model that needs no network. The words of the message decide what it does."""

    name = "demo"

    def __init__(self, plan: str = "talk") -> None:
        self._plan = plan

    async def stream(self, request: ModelRequest, *, signal: AbortSignal) -> AsyncGenerator[Chunk, None]:
        """Answer with text, a few words each second, or with tool calls."""
        last = request.messages[-1]
        words, calls = self._answer(request, last.text.lower() if isinstance(last, UserMessage) else "")
        yield UsageReported(Usage(1, 40 * len(request.messages), 0))
        for number, word in enumerate(words.split(" ")):
            await signal.sleep(0.05)
            yield TextDelta(word if not number else f" {word}")
        known = {spec.name for spec in request.tools}
        for index, (name, arguments) in enumerate(call for call in calls if call[0] in known):
            call_id = f"call-{len(request.messages)}-{index}"
            yield CallDelta(index=index, call_id=call_id, name=name)
            yield CallDelta(index=index, arguments=json.dumps(arguments))
        yield UsageReported(Usage(1, 40 * len(request.messages), len(words.split())))
        yield AnswerEnded("tool_calls" if calls else "stop")

    def _answer(self, request: ModelRequest, text: str) -> tuple[str, list[tuple[str, dict[str, object]]]]:
        results = []
        for message in reversed(request.messages):
            if not isinstance(message, ToolResult):
                break
            results.append(message)
        if results:
            lines = "\n".join(f"- **{one.name}**: {one.content} ({one.status})" for one in reversed(results))
            return f"Here is what came of it:\n\n{lines}", []
        if self._plan == "research":
            return "I will look it up, and dig a little.", [("search", {"query": "owls"}), ("dig", {"depth": 3})]
        return self._by_keyword(text)

    def _by_keyword(self, text: str) -> tuple[str, list[tuple[str, dict[str, object]]]]:
        table: dict[str, list[tuple[str, dict[str, object]]]] = {
            "search": [("search", {"query": text})],
            "dig": [("dig", {"depth": 12})],
            "hash": [("grind", {"rounds": 6})],
            "build": [("build", {})],
            "research": [("researcher", {"prompt": text})],
            "ask": [("ask", {})],
            "pay": [("pay", {"amount": 9.5})],
        }
        words = set(re.findall(r"[a-z]+", text))
        if "everything" in words:
            calls = [*table["search"], *table["dig"], *table["research"], *table["build"]]
            return "All of it at once. This is a good moment to press Stop.", calls
        for word, calls in table.items():
            if word in words:
                return f"I will use `{calls[0][0]}` for that.", calls
        if "story" in words:
            return STORY, []
        offered = "\n".join(f"- `{words}`: {description}" for words, description in TRY.items())
        return f"I am a demo: I need no key and do nothing useful. Say one of these, then stop me:\n\n{offered}", []


def demo_agent() -> Agent:
    """The agent that `safepoint serve` runs by default.

    With OPENAI_API_KEY or OLLAMA_HOST it has a real model, else a `DemoModel`.
    """
    model, inner = _models()
    researcher = Agent(inner, tools=[search, dig], name="researcher", instructions="You look things up.")
    tools: list[AnyTool] = [search, dig, grind, build, pay, ask, researcher.as_tool()]
    return Agent(model, tools=tools, name="demo", instructions="You are helpful, and you can be stopped at any moment.")


def _models() -> tuple[Model, Model]:
    if os.environ.get("OPENAI_API_KEY"):
        from ..models.openai import OpenAIModel

        model = OpenAIModel(os.environ.get("OPENAI_MODEL", "gpt-5-mini"), base_url=os.environ.get("OPENAI_BASE_URL"))
        return model, model
    if os.environ.get("OLLAMA_HOST"):
        from ..models.ollama import OllamaModel

        ollama = OllamaModel(os.environ.get("OLLAMA_MODEL", "llama3.2"), host=os.environ["OLLAMA_HOST"])
        return ollama, ollama
    return DemoModel(), DemoModel("research")
