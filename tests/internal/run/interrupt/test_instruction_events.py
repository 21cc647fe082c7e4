"""Owns the tests that look inside, beside those of `tests/internal/run/interrupt/test_contended_interrupts.py`.

Being called in a thread before its instructions: switched on by the first who asks, off by the last.
"""

import sys
import threading
from functools import partial

from safepoint.run import AbortInterrupt
from safepoint.run.interrupt import InterruptibleCall, instruction_events
from tests.internal.run.interrupt.test_call import SECONDS, Gate, Worker, nap
from tests.internal.run.interrupt.test_contended_interrupts import tracing
from tests.kit.waiting import wait_until


def test_it_is_switched_on_by_the_first_and_off_by_the_last():
    def off():
        return instruction_events._calls == {} and getattr(instruction_events, "_tool", None) is None

    gates = [Gate(), Gate()]
    workers = [Worker(partial(blocked, gate)).is_at("in blocked") for gate in gates]
    assert off()
    for worker in workers:
        assert worker.call.interrupt()
    for gate, worker in zip(gates, workers, strict=True):
        assert not off()
        gate.open()
        assert worker.end() is AbortInterrupt
    assert off()


def blocked(gate):
    gate.wait()
    nap()
    return "not interrupted"


@tracing
def test_a_trace_function_of_somebody_else_is_given_back():
    found = []

    def tracer(frame, event, arg):
        return None

    def tool():
        while True:
            nap()

    def traced():
        sys.settrace(tracer)
        try:
            call.run()
        except AbortInterrupt:
            found.append(sys.gettrace())
        sys.settrace(None)

    call = InterruptibleCall(tool)
    thread = threading.Thread(target=traced)
    thread.start()
    wait_until(lambda: "in tool" in (call.where() or ""))
    assert call.interrupt()
    thread.join(SECONDS)
    assert found == [tracer]
