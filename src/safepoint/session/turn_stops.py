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

from collections.abc import Callable, Mapping
from functools import partial

from ..abort import AbortReason, AbortSignal, Clock
from ..abort.reason import reason_from
from ..receipt import Receipt
from ..run.stop import StopAck, StopAt, StopOptions, StopRequest
from .admission import EarlyStops
from .loop_tasks import LoopTasks
from .turn import SessionTurn
from .turn_endings import receipt_of

__all__ = ["TurnStops"]


class TurnStops:
    """The stops of one session.

    Args:
        turns: The turns of the session that have not ended, by id.
        loop_tasks: The event loop of the session.
        clock: The clock of time limits.
        record: Writes the stop of a turn into the log. Called on the event loop of the session.
        leave_queue: Takes a queued turn that was stopped out of the queue. Called on the event loop of the session.

    Attributes:
        early_stops: The stops of turns that do not exist yet.
    """

    def __init__(
        self,
        turns: Mapping[str, SessionTurn],
        loop_tasks: LoopTasks,
        clock: Clock,
        record: Callable[[SessionTurn, AbortReason], object],
        leave_queue: Callable[[SessionTurn], object],
    ) -> None:
        self._turns = turns
        self._loop_tasks = loop_tasks
        self._clock = clock
        self._record = record
        self._leave_queue = leave_queue
        self.early_stops = EarlyStops(clock)

    def stop_by_id(self, turn_id: str, options: StopOptions, origin: str | None) -> StopAck | None:
        """Stop the turn with this id. Any thread.

        Returns:
            The answer; `None` if there is no such turn. Then the stop is kept for a turn that comes later.
        """
        if turn_id not in self._turns:
            self.early_stops.remember(turn_id, reason_from(options.reason, origin))
        # Publish the early stop before the turns are read: see the docstring of the module.
        turn = self._turns.get(turn_id)
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
        self._loop_tasks.call(self._record_if_new, turn)
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
        turn.signal_listener = turn.signal.add_listener(lambda: self._loop_tasks.call(self._on_abort, turn))
        if turn.signal.aborted:  # the listener may have come too late: see the docstring of the module
            self._on_abort(turn)

    def _on_abort(self, turn: SessionTurn) -> None:
        if turn.queued:
            self._leave_queue(turn)
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

    async def _settled(self, turn: SessionTurn, timeout: float | None) -> Receipt:
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        return receipt_of((await limit.run(turn.until_ended())).outcome)
