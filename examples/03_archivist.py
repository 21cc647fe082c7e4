"""The Archivist: scouts ask slow catalogues, the visitor leaves, and another process continues from there."""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from safepoint import AbortController, Aborted, Completed, Failed, Retry, TimedOut
from safepoint.flow import END, Checkpoint, Flow, FlowResult, NodeContext

BOOKS = {"maps": "A Map of Fog", "stars": "Night Atlas", "owls": "Strigiformes", "herbs": "Simples", "attic": "?"}
SECONDS = {"herbs": 1.5, "attic": 60}  # the time until these answer; the others answer at once


class Library(ThreadingHTTPServer):
    """A real server on this machine. Nodes get it as their service: a checkpoint holds data, not connections."""

    def __init__(self, scale: float) -> None:
        super().__init__(("127.0.0.1", 0), Desk)
        self.scale = scale
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Desk(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Library)
        catalogue = self.path[1:]
        self.server.asked.append(catalogue)
        busy = catalogue == "owls" and self.server.asked.count("owls") <= 2
        time.sleep(SECONDS.get(catalogue, 0) * self.server.scale)
        with suppress(OSError):  # the client may have disconnected
            self.send_response(503 if busy else 200)
            self.end_headers()
            self.wfile.write(BOOKS[catalogue].encode())

    def log_message(self, format: str, *args: object) -> None: ...


@dataclass
class Shelf:
    catalogues: list[str]
    books: list[str] = field(default_factory=list)


flow: Flow[Shelf, Library] = Flow("the-archivist", start="scouts")


async def scout(catalogue: str, ctx: NodeContext[Library]) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", ctx.services.server_port)
    try:
        writer.write(f"GET /{catalogue} HTTP/1.0\r\n\r\n".encode())
        head, _, book = (await reader.read()).decode().partition("\r\n\r\n")  # a stop interrupts this await …
    finally:
        writer.close()  # … and the connection is closed
    if " 200 " not in head:
        raise ConnectionError(head.splitlines()[0])
    return book


@flow.node
async def rank(shelf: Shelf) -> None:
    shelf.books.sort()


patience = Retry(attempts=4, delay=0.3, jitter=0, on=ConnectionError)
flow.scatter("scouts", items="catalogues", body=scout, retry=patience, gather=lambda to, books: to.books.extend(books))
flow.route("scouts", "rank")
flow.route("rank", END)


def tell(result: FlowResult[Shelf]) -> None:
    match result.outcome:
        case Completed(shelf):
            print(f"  completed: {', '.join(shelf.books)}")
        case Aborted(reason, receipt):
            print(f"  aborted: {reason.message}. It was at {result.cursor}. The receipt:\n{receipt}")
        case TimedOut(reason):
            print(f"  timed out: {reason.message}. It was at {result.cursor}.")
        case Failed(error):
            print(f"  failed: {error!r}")


async def visits(library: Library, path: Path) -> None:
    print("A patient visitor:")
    tell(await flow.execute(Shelf(["maps", "stars", "owls", "herbs"]), services=library))
    print("A catalogue that never answers, and a deadline:")
    tell(await flow.execute(Shelf(["stars", "attic"]), services=library, timeout=5 * library.scale))
    print("A visitor who leaves:")
    library.asked.clear()  # the owls are busy again
    visitor = AbortController()
    asyncio.get_running_loop().call_later(0.8 * library.scale, lambda: visitor.abort("the visitor closed the page"))
    result = await flow.execute(Shelf(["maps", "stars", "owls", "herbs"]), services=library, signal=visitor.signal)
    tell(result)
    Checkpoint.from_result(result).save(path)


async def resume(library: Library, path: Path) -> None:
    checkpoint = Checkpoint.load(path)
    print(f"Another process continues at {checkpoint.cursor}:")
    tell(await flow.execute(resume=checkpoint, services=library))
    print(f"  it asked only: {', '.join(sorted(set(library.asked)))}")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--save", type=Path, metavar="FILE", help="keep the checkpoint of the visitor who left in FILE")
parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from the checkpoint in FILE")
parser.add_argument("--scale", type=float, default=1, help="0.5: everything takes half as long")
options = parser.parse_args()
if options.resume:
    asyncio.run(resume(Library(options.scale), options.resume))
else:
    with tempfile.TemporaryDirectory() as folder:
        saved = options.save or Path(folder, "archive.json")
        asyncio.run(visits(Library(options.scale), saved))
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, "--resume", saved, "--scale", str(options.scale)], check=True)
