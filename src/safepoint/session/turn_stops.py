"""Owns how a turn is stopped: the signal first, the record at once after. That includes turns that do not exist yet.

**Signal first, record second.** `stop` aborts the turn's signal in the caller's thread, and then hands the writing of
the record to the session's own event loop. In the other order a person who pressed Stop would wait for the disk. The
price is a short time in which the turn is stopped and a crash would forget it; that is why the answer says how far it
has come (`acknowledgements.py`), and why the answer of a host waits for the record.

**Every source is recorded before the end.** A turn may be stopped by its own `stop()`, by the signal of its caller or
by a time limit. `watch_signal` listens to the turn's signal, whoever aborts it, and records the stop. The record and
the end of the turn are added to the log by the same event loop, in this order, because the abort comes before the work
can return. A shutdown of the host is no stop of the turn: it is not recorded, so that the next owner continues it.

**Ids that do not exist yet.** A stop may arrive before the message with which its turn begins. `stop_by_id` runs in any
thread, `SessionEngine.admit` on the event loop, and both without a lock:

- `stop_by_id` publishes the stop in `early_stops` and then looks for the turn;
- `admit` publishes the turn in `turns` and then looks for an early stop.

Whichever comes second finds what the first has published. If either of the two checked first and published after, both
could look before the other has written, and the stop would be lost. If both find each other, the turn is stopped twice,
which is the same as once.

**A listener that is added too late.** `watch_signal` adds the listener first and reads `aborted` second, because a
listener is not called for an abort that came before it.
"""

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from ..abort import AbortReason, AbortSignal, Clock
from ..abort.reason import reason_from
from ..events import StopRequested
from ..receipt import Receipt
from ..run.stop import PRESS_SECONDS, StopAck, StopAt, StopOptions, StopRequest
from .turn import SessionTurn
from .turn_endings import receipt_of

if TYPE_CHECKING:
    from .engine import SessionEngine

__all__ = ["EarlyStops", "TurnStops"]

# How long stops for unknown turns are kept, and how many.
REMEMBER_SECONDS = 600.0
REMEMBER_COUNT = 1000


class EarlyStops:
    """Stops for turns that do not exist yet. A turn that comes within ten minutes of its stop does not begin.

    The number of stops is limited, so that a client cannot fill the memory with ids: the oldest are dropped.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stops: OrderedDict[str, tuple[float, AbortReason]] = OrderedDict()

    def remember(self, turn_id: str, reason: AbortReason) -> None:
        """Keep the stop of a turn that does not exist yet. The first reason for an id stays."""
        self._stops.setdefault(turn_id, (self._clock.monotonic() + REMEMBER_SECONDS, reason))
        while len(self._stops) > REMEMBER_COUNT:
            self._stops.popitem(last=False)

    def find(self, turn_id: str) -> AbortReason | None:
        """Return the reason if this turn was stopped before it came. The stop is kept, for a message sent again."""
        until, reason = self._stops.get(turn_id, (0.0, None))
        return reason if until > self._clock.monotonic() else None

    def forget(self, turn_id: str) -> None:
        """Drop the stop of a turn that has come meanwhile and was stopped itself."""
        self._stops.pop(turn_id, None)


class TurnStops:
    """The stops of one session.

    Args:
        engine: The turns of the session, their log and their event loop.

    Attributes:
        early_stops: The stops of turns that do not exist yet.
        records: The number of the record of a stop, and its reason, by turn.
    """

    def __init__(self, engine: "SessionEngine") -> None:
        self._engine = engine
        self._clock = engine.clock
        self.early_stops = EarlyStops(engine.clock)
        self.records: dict[str, tuple[int, AbortReason]] = {}

    def stop_by_id(self, turn_id: str, options: StopOptions, origin: str | None) -> StopAck | None:
        """Stop the turn with this id. Any thread.

        Returns:
            The answer; `None` if there is no such turn. Then the stop is kept for a turn that comes later.
        """
        if turn_id not in self._engine.turns:
            self.early_stops.remember(turn_id, reason_from(options.reason, origin))
        # Publish the early stop before the turns are read: see the docstring of the module.
        turn = self._engine.turns.get(turn_id)
        if turn is None:
            return None
        self.early_stops.forget(turn_id)
        return self.stop(turn, options, origin)

    def stop(self, turn: SessionTurn, options: StopOptions, origin: str | None) -> StopAck:
        """Stop this turn and no other. Any thread."""
        request = options.request(turn.stop_request, now=self._clock.monotonic(), origin=origin)
        settled = partial(self._settled, turn)
        if turn.outcome is not None or turn.result is not None:
            return StopAck("already_finished", "settled", f"turn {turn.id} has ended", turn.id, settled)
        turn.stop_wanted = True
        first = turn.request_stop(request)
        self._engine.loop_tasks.call(self._record_if_new, turn)
        message = f"stops {turn.stop_request}"
        return StopAck("accepted" if first else "already_stopping", "accepted", message, turn.id, settled)

    def hand_over(self, turn: SessionTurn, cause: AbortReason, within: float) -> None:
        """Stop a turn because its host shuts down: at a safe point if `within` is not 0, else at once.

        The stop is not recorded, because it is not meant for the turn. After a crash in this moment the next owner of
        the session continues the turn, as it does when the turn has ended by this.
        """
        now = self._clock.monotonic()
        at, limit = (StopAt.SAFE_POINT, now + within) if within > 0 else (StopAt.NOW, None)
        turn.request_stop(StopRequest(at, "tree", limit, cause, now))

    def watch_signal(self, turn: SessionTurn) -> None:
        """React to an abort of the turn's signal, by whomever, until the turn has ended."""
        turn.signal_listener = turn.signal.add_listener(lambda: self._engine.loop_tasks.call(self._on_abort, turn))
        if turn.signal.aborted:  # the listener may have come too late: see the docstring of the module
            self._on_abort(turn)

    def _on_abort(self, turn: SessionTurn) -> None:
        if turn.queued:
            self._engine.leave_queue(turn)
            return
        if turn.stop_request.at is not StopAt.NOW or not turn.stop_wanted:
            # Reasons are compared with `is`. The turn's own request also aborts it where no stop is meant: to make way
            # for another turn, or because the host shuts down. Any other abort comes from the caller's signal, a time
            # limit or a store that failed, and counts as a stop.
            outside = turn.signal.reason is not turn.live_stop.request.reason
            if outside or turn.stop_wanted:
                turn.stop_wanted = True
                turn.request_stop(StopRequest(StopAt.NOW, "tree", None, turn.signal.reason, self._clock.monotonic()))
        self._record_if_new(turn)

    def _record_if_new(self, turn: SessionTurn) -> None:
        """Record the stop of a turn, unless the log says the same already."""
        if not turn.stop_wanted:
            return
        recorded, wanted = turn.recorded_stop, turn.stop_request
        changed = (wanted.at, wanted.abandon) != (recorded.at, recorded.abandon)
        if turn.outcome is None and turn.result is None and changed:
            turn.recorded_stop = turn.stop_request
            self._record(turn, turn.stop_request.reason or AbortReason())

    def _record(self, turn: SessionTurn, reason: AbortReason) -> None:
        request = turn.stop_request
        event = StopRequested(
            **self._engine.stamp(turn.id),
            turn_id=turn.id,
            at_point=request.at.name,
            abandon=request.abandon,
            reason=reason.message,
            reason_kind=reason.kind,
        )
        failed = self._engine.log.error is not None  # then the store stops the turn, and no person or program
        seq = self._engine.add(event, durable=True)
        if not failed:
            self.records[turn.id] = seq, reason

    def preempt(self, running: SessionTurn, at: StopAt) -> None:
        """Ask the running turn to make way, and record it in the batch that has the new turn.

        Otherwise a crash before its end would bring it back, with its tools, before the turn that was to replace it.
        """
        reason = AbortReason("preempted", "something newer came")
        running.live_stop.join(StopRequest(at, "root", None, reason, self._clock.monotonic()))
        if not running.stop_wanted:  # else a stop is recorded, and its reason counts
            self._engine.add(
                StopRequested(
                    **self._engine.stamp(running.id),
                    turn_id=running.id,
                    at_point=at.name,
                    reason=reason.message,
                    reason_kind=reason.kind,
                ),
                durable=True,
            )
        if at is StopAt.NOW:
            self._abandon_on_second_interrupt(running)

    def _abandon_on_second_interrupt(self, running: SessionTurn) -> None:
        """Note that a message interrupts the running turn. With the second one, the turn is no longer waited for.

        A second one within a second counts as the same press of a button.
        """
        now = self._clock.monotonic()
        # An earlier abort counts as the first press, from whatever source it came.
        presses = [at for at in (running.interrupted_at, running.signal.aborted_at) if at is not None]
        if running.interrupted_at is None:
            running.interrupted_at = now
        if presses and now - min(presses) >= PRESS_SECONDS and running.ctx is not None:
            running.live_stop.join(StopRequest(abandon=0.0))

    @property
    def unrecorded(self) -> dict[str, AbortReason]:
        """The reasons of the stops that are not in the store because it failed, by turn."""
        written = self._engine.log.written_seq
        return {turn_id: reason for turn_id, (seq, reason) in self.records.items() if seq > written}

    def stop_resume(self, turn_id: str, reason: AbortReason) -> None:
        """Record that a turn that lost its owner must not be resumed, unless a turn has continued it meanwhile."""
        if self._engine.log.error is None and self._engine.state.interrupted == turn_id:
            # The event is one of the session: the turn has ended, and an ended turn has no further events.
            event = StopRequested(
                **self._engine.stamp(),
                turn_id=turn_id,
                at_point=StopAt.NOW.name,
                reason=reason.message,
                reason_kind=reason.kind,
            )
            self._engine.add(event, durable=True)

    async def _settled(self, turn: SessionTurn, timeout: float | None) -> Receipt:
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        return receipt_of((await limit.run(turn.until_ended())).outcome)
