"""A program that interrupts naive tools again and again, under contention, and prints as JSON what was left behind.

    python interrupts_program.py <folder of the package's sources> <how often> <how many at once> [scenario …]

It is run with every version of Python that is there, without any package beside the standard library: of ours it loads
only the modules that interrupt. Each scenario prints how many calls there were, how many of them were interrupted, and
how many left something held, lost or undone (`bad`), which must be none.
"""

import json
import logging
import os
import queue
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, repeat
from types import ModuleType

SECONDS = 30.0
pause = time.sleep  # real time: it is what naive tools do, and what brings threads into each other's way


def load(sources):
    for name in ("safepoint", "safepoint.run"):  # not their `__init__`, which needs other packages
        module = ModuleType(name)
        module.__path__ = [os.path.join(sources, *name.split("."))]
        sys.modules[name] = module
    from safepoint.run.interrupt import InterruptibleCall

    return InterruptibleCall


class Trial:
    """One tool that is interrupted once. Its fields are what the tool works with."""

    waits = 0.005  # at most this long after the beginning it is interrupted
    cut = False

    def prepare(self):
        pass

    def tool(self):
        raise NotImplementedError

    def neighbour(self, over):
        over.wait(SECONDS)

    def asked(self):
        """After the interrupt was asked for."""

    def bad(self):
        return False


class AcquireTry(Trial):
    def prepare(self):
        self.lock = threading.Lock()

    def tool(self):
        while True:
            self.lock.acquire()
            try:
                pause(0.0005)
            finally:
                self.lock.release()

    def neighbour(self, over):
        while not over.is_set():
            with self.lock:
                pause(0.001)
            pause(0.0001)

    def bad(self):
        free = self.lock.acquire(timeout=2.0)
        if free:
            self.lock.release()
        return not free


class AcquireElsewhereTry(AcquireTry):
    """The same through functions of the tool's own, and with a line in between."""

    def take(self):
        self.lock.acquire()

    def tool(self):
        rounds = 0
        while True:
            self.take()
            rounds += 1
            try:
                pause(0.0005)
            finally:
                self.lock.release()


class AcquireIfTry(AcquireTry):
    def tool(self):
        while True:
            if self.lock.acquire(timeout=1.0):
                try:
                    pause(0.0005)
                finally:
                    self.lock.release()


class LongWaitTry(AcquireTry):
    def prepare(self):
        super().prepare()
        self.lock.acquire()

    def tool(self):
        self.lock.acquire()
        try:
            while True:
                pause(0.0005)
        finally:
            self.lock.release()

    def neighbour(self, over):
        over.wait(0.01)
        self.lock.release()


class AcquireFlag(AcquireTry):
    def tool(self):
        while True:
            held = False
            try:
                self.lock.acquire()
                held = True
                pause(0.0005)
            finally:
                if held:
                    self.lock.release()


class AcquireIntoList(AcquireTry):
    def tool(self):
        while True:
            got = []
            try:
                for lock in [self.lock]:
                    lock.acquire()
                    got.append(lock)
                pause(0.0005)
            finally:
                for lock in got:
                    lock.release()


class AcquireStack(AcquireTry):
    def tool(self):
        while True:
            with ExitStack() as stack:
                self.lock.acquire()
                stack.callback(self.lock.release)
                pause(0.0005)


class AcquireMany(AcquireTry):
    def tool(self):
        locks = [self.lock, threading.Lock()]
        while True:
            for lock in locks:
                lock.acquire()
            try:
                pause(0.0005)
            finally:
                for each in locks:
                    each.release()


class AcquireManyAtOnce(AcquireTry):
    def tool(self):
        locks = [self.lock, threading.Lock()]
        while True:
            got = [lock.acquire() for lock in locks]
            try:
                pause(0.0005 * len(got))
            finally:
                for each in locks:
                    each.release()


class AcquireInHelper(AcquireTry):
    def take(self, lock):
        lock.acquire()
        pause(0.0005)
        pause(0.0005)

    def tool(self):
        while True:
            self.take(self.lock)
            pause(0)
            try:
                pause(0.0005)
            finally:
                self.lock.release()


class ReleaseInHelper(AcquireTry):
    def get_ready(self):
        pause(0.0005)
        pause(0.0005)

    def give(self):
        self.lock.release()

    def tool(self):
        while True:
            self.lock.acquire()
            self.get_ready()
            try:
                pause(0.0005)
            finally:
                self.give()


class WithLock(AcquireTry):
    def tool(self):
        while True:
            with self.lock:
                pause(0.0005)


class OwnContext(AcquireTry):
    """A context manager of the tool's own that takes the lock in `__enter__`."""

    def __enter__(self):
        self.lock.acquire()
        pause(0)
        return self

    def __exit__(self, *_):
        pause(0)
        self.lock.release()

    def tool(self):
        while True:
            with self:
                pause(0.0005)


class OwnGeneratorContext(AcquireTry):
    @contextmanager
    def locked(self):
        self.lock.acquire()
        pause(0)
        yield
        pause(0)
        self.lock.release()

    def tool(self):
        while True:
            try:
                with self.locked():
                    pass
            except RuntimeError:
                pass


class SlowFinally(AcquireTry):
    def tool(self):
        while True:
            self.lock.acquire()
            try:
                pause(0.0005)
            finally:
                pause(0.05)
                self.lock.release()


class Take(Trial):
    def prepare(self):
        self.inbox = queue.SimpleQueue()
        self.sent, self.done = 0, []

    def tool(self):
        while True:
            item = self.inbox.get()
            self.done.append(item)

    def neighbour(self, over):
        while not over.is_set():
            self.inbox.put(self.sent)
            self.sent += 1
            pause(0.0003)

    def bad(self):
        while not self.inbox.empty():
            self.done.append(self.inbox.get())
        return self.done != list(range(self.sent))


class TakeTry(Take):
    def tool(self):
        rounds = 0
        while True:
            item = self.inbox.get()
            try:
                self.done.append(item)
            finally:
                rounds += 1


class TakeAndCall(Take):
    def handle(self, item):
        self.keep(item)

    def keep(self, item):
        self.done.append(item)

    def tool(self):
        while True:
            item = self.inbox.get()
            self.handle(item)


class TakeAndCallAtOnce(TakeAndCall):
    def tool(self):
        while True:
            self.handle(self.inbox.get())


class TakeInFor(Take):
    def tool(self):
        for item in iter(self.inbox.get, None):
            self.done.append(item)


class TakeInWhile(Take):
    def tool(self):
        while (item := self.inbox.get()) is not None:
            self.done.append(item)


class TakeUntilThere(Take):
    def tool(self):
        while True:
            item = None
            while item is None:
                item = self.take()
            self.done.append(item)

    def take(self):
        try:
            return self.inbox.get(timeout=0.0002)
        except queue.Empty:
            return None


class TakeUnderLock(Take):
    def prepare(self):
        super().prepare()
        self.lock = threading.Lock()

    def tool(self):
        while True:
            with self.lock:
                item = self.inbox.get()
            self.done.append(item)


class DescriptorTry(Trial):
    def prepare(self):
        self.folder = tempfile.mkdtemp()
        self.pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(self.pipe)  # opening it waits for the neighbour

    def tool(self):
        while True:
            descriptor = os.open(self.pipe, os.O_RDONLY)
            try:
                pause(0.0002)
            finally:
                os.close(descriptor)

    def neighbour(self, over):
        while not over.is_set():
            with suppress(OSError):  # nobody is opening it
                os.close(os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK))
            pause(0.0003)

    def bad(self):
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # closed meanwhile
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        shutil.rmtree(self.folder)
        return self.pipe in found  # also what is only kept in `files`


class OpenTry(DescriptorTry):
    def prepare(self):
        super().prepare()
        self.files = {}  # so that nothing but the tool closes them
        # Opens the next one and keeps it, in one call into C: there is no place to interrupt it in between.
        self.opened = map(self.files.setdefault, count(), map(open, repeat(self.pipe)))

    def tool(self):
        while True:
            file = next(self.opened)
            try:
                pause(0.0002)
            finally:
                file.close()


class OpenTwoTry(OpenTry):
    def tool(self):
        while True:
            first = next(self.opened)
            second = next(self.opened)
            try:
                pause(0.0002)
            finally:
                first.close()
                second.close()


class Logs(Trial):
    def prepare(self):
        self.logger = logging.Logger("tool")
        self.handler = logging.StreamHandler(open(os.devnull, "w"))
        self.logger.addHandler(self.handler)

    def tool(self):
        while True:
            self.logger.warning("hello")

    def bad(self):
        lock = self.handler.lock
        free = lock is not None and lock.acquire(timeout=2.0)
        self.handler.stream.close()
        return not free


class Cut(Trial):
    cut = True

    def prepare(self):
        self.ours, self.theirs = socket.socketpair()
        self.written = []
        self.begun = threading.Event()

    def source(self):
        return self.ours.recv(100)

    def tool(self):
        self.begun.set()
        data = self.ours.recv(100)
        self.written.append(data)

    def neighbour(self, over):
        pass

    def asked(self):
        self.ours.shutdown(socket.SHUT_RDWR)

    def bad(self):
        self.ours.close()
        self.theirs.close()
        return bool(self.written)


class CutAtOnce(Cut):
    def tool(self):
        self.begun.set()
        self.written.append(self.ours.recv(100))


class CutInLibrary(Cut):
    def tool(self):
        reader = self.ours.makefile("rb")
        self.begun.set()
        try:
            data = reader.read()
            self.written.append(data)
        finally:
            reader.close()


class CutBeforeTry(Cut):
    def tool(self):
        self.begun.set()
        data = self.source()
        try:
            self.written.append(data)
        finally:
            self.rounds = 1


class CutIf(Cut):
    def tool(self):
        self.begun.set()
        if self.ours.recv(100) == b"":
            self.written.append("empty")


SCENARIOS = {
    trial.__name__: trial
    for trial in (
        AcquireTry,
        AcquireElsewhereTry,
        AcquireIfTry,
        LongWaitTry,
        AcquireFlag,
        AcquireIntoList,
        AcquireStack,
        AcquireMany,
        AcquireManyAtOnce,
        AcquireInHelper,
        ReleaseInHelper,
        WithLock,
        OwnContext,
        OwnGeneratorContext,
        SlowFinally,
        Take,
        TakeTry,
        TakeAndCall,
        TakeAndCallAtOnce,
        TakeInFor,
        TakeInWhile,
        TakeUntilThere,
        TakeUnderLock,
        OpenTry,
        OpenTwoTry,
        DescriptorTry,
        Logs,
        Cut,
        CutAtOnce,
        CutInLibrary,
        CutBeforeTry,
        CutIf,
    )
}


def one(kind, call_type, chance, results):
    """Begin the tool, have it interrupted, and look at what it left."""
    trial = kind()
    trial.prepare()
    call, ends, over = call_type(trial.tool), [], threading.Event()

    def run():
        try:
            call.run()
            ends.append("returned")
        except BaseException as error:
            ends.append(type(error).__name__)

    threads = [
        threading.Thread(target=run, daemon=True),
        threading.Thread(target=trial.neighbour, args=(over,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    if trial.cut:
        trial.begun.wait(SECONDS)
        pause(0.002)
    else:
        pause(chance.random() * trial.waits)
    until = time.monotonic() + SECONDS
    while not call.interrupt(cut=trial.cut) and time.monotonic() < until:
        pause(0.0005)
    trial.asked()
    threads[0].join(SECONDS)
    over.set()
    threads[1].join(SECONDS)
    bad = any(thread.is_alive() for thread in threads) or trial.bad()
    # Appended, not added up: `count += check()` reads the count before the check, and threads would undo each other's.
    results.append((ends == ["AbortInterrupt"], bad))


def main(sources, number, at_once, *names):
    call_type = load(sources)
    sys.setswitchinterval(1e-4)
    found: dict[str, object] = {}
    for name in names or SCENARIOS:
        results: list[tuple[bool, bool]] = []
        begun = time.monotonic()
        todo = iter(range(int(number)))

        def work(seed, name=name, results=results, todo=todo):
            chance = random.Random(seed)
            for _ in todo:
                one(SCENARIOS[name], call_type, chance, results)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(int(at_once))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        interrupted, bad = sum(result[0] for result in results), sum(result[1] for result in results)
        seconds = round(time.monotonic() - begun, 1)
        found[name] = {"calls": len(results), "interrupted": interrupted, "bad": bad, "seconds": seconds}
    events = sys.modules["safepoint.run.interrupt.instruction_events"]
    found["left"] = len(events._calls)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
