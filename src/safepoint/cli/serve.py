"""The command `safepoint serve`: an agent in this process, or sessions on workers, with the page."""

import argparse
import asyncio
from urllib.parse import quote

from ..agent.target import load_agent
from ..errors import MissingExtra, UsageError
from ..session.host import Host
from .demo import TRY, demo_agent
from .style import bold
from .worker import broker_of

__all__ = ["serve"]

# Half of the time for a shutdown is for safe points, this share for tools that ignore the stop, the rest for writing.
ABANDON_SHARE = 0.3


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code."""
    try:
        from ..server import Server
    except ImportError as error:
        raise MissingExtra("safepoint serve", "server", error) from error

    async def run() -> None:
        host = await (_local(options) if options.nats is None else _remote(options))
        server = Server(
            host,
            address=options.host,
            port=options.port,
            token=options.token,
            within=options.within,
            started=lambda url: _print_welcome(url, options),
        )
        await server.run()

    asyncio.run(run())
    print("stopped: everything is written", flush=True)
    return 0


async def _local(options: argparse.Namespace) -> Host:
    from ..server import with_abandon_after
    from ..session.local_host import LocalHost
    from ..session.sqlite import SqliteStore
    from ..session.store import MemoryStore, Store

    agent = demo_agent() if options.agent is None else load_agent(options.agent)
    agent = with_abandon_after(agent, min(options.abandon_after, options.within * ABANDON_SHARE))
    store: Store = SqliteStore(options.db) if options.db else MemoryStore()
    await store.sessions()  # a file that cannot be used is reported now, and not in the first request
    return LocalHost(agent, store, resume=options.resume, on_disconnect=options.on_disconnect)


async def _remote(options: argparse.Namespace) -> Host:
    from ..worker import RemoteHost

    if options.agent is not None or options.db is not None:
        raise UsageError(
            "with --nats the agents are on the workers, and sessions are kept there: leave out AGENT and --db"
        )
    host = RemoteHost(broker_of(options), on_disconnect=options.on_disconnect)
    await host.workers()  # a broker that cannot be reached is reported now
    return host


def _print_welcome(url: str, options: argparse.Namespace) -> None:
    address = f"{url}/#token={quote(options.token)}" if options.token else url
    print(f"{bold('Safepoint')} is at {address}")
    if options.nats is not None:
        print(
            f"\nSessions run on the workers at {options.nats} (see `safepoint workers`). Ctrl-C ends this server only.",
            flush=True,
        )
        return
    if options.agent is None:
        print("\nThings to say, and then to stop (Stop, or Esc Esc):")
        for words, description in TRY.items():
            print(f"  {bold(f'{words:<18}')} {description}")
    print(f"\nSessions are kept in {options.db or 'memory'}. Ctrl-C ends it in order.", flush=True)
