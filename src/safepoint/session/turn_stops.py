"""Owns how a turn is stopped: the signal first, the record at once after. Also a turn that nobody has seen yet.

Whatever the source – its own `stop()`, the caller's signal, a deadline – the log knows of it before the end.
"""

from collections.abc import Callable, Mapping
from functools import partial

from ..abort import AbortReason, AbortSignal, Clock
from ..abort.reason import reason_from
from ..run.receipt import Receipt
from ..run.stop import StopAck, StopAt, StopOptions, StopRequest
from .admission import EarlyStops
from .loop_tasks import LoopTasks
from .turn import SessionTurn
from .turn_endings import receipt_of

__all__ = ["TurnStops"]


class TurnStops:
    """The stops of one session. `record` and `left` are called at home: to write a request down, to leave the queue."""

    def __init__(
        self,
        turns: Mapping[str, SessionTurn],
        loop_tasks: LoopTasks,
        clock: Clock,
        record: Callable[[SessionTurn, AbortReason], object],
        left: Callable[[SessionTurn], object],
    ) -> None:
        self._turns = turns
        self._loop_tasks = loop_tasks
        self._clock = clock
        self._record = record
        self._left = left
        self.tombstones = EarlyStops(clock)

    def by_id(self, turn_id: str, options: StopOptions, origin: str | None) -> StopAck | None:
        """Stop the turn with this id. None: there is none, and it is remembered. Any thread."""
        if turn_id not in self._turns:
            self.tombstones.remember(turn_id, reason_from(options.reason, origin))
        # It is written down before the turns are looked at, and admission does the reverse: one sees the other.
        turn = self._turns.get(turn_id)
        if turn is None:
            return None
        self.tombstones.forget(turn_id)
        return self.stop(turn, options, origin)

    def stop(self, turn: SessionTurn, options: StopOptions, origin: str | None) -> StopAck:
        """Stop this turn and no other. Any thread."""
        request = options.request(turn.request, now=self._clock.monotonic(), origin=origin)
        settled = partial(self._settled, turn)
        if turn.outcome is not None or turn.result is not None:
            return StopAck("already_finished", "settled", f"turn {turn.id} has ended", turn.id, settled)
        turn.asked_to_stop = True
        first = self._ask(turn, request)
        self._loop_tasks.post(self._write_down, turn)
        told = f"stops {turn.request}"
        return StopAck("accepted" if first else "already_stopping", "accepted", told, turn.id, settled)

    def hand_over(self, turn: SessionTurn, cause: AbortReason, within: float) -> None:
        """Stop a turn because its host goes, at a safe point if `within` is not 0.

        Nobody wanted this turn to stop, so there is no record of a stop: after a crash in this very moment, whoever
        opens the session next goes on with it, as it does when the turn has ended by this.
        """
        now = self._clock.monotonic()
        at, limit = (StopAt.SAFE_POINT, now + within) if within > 0 else (StopAt.NOW, None)
        self._ask(turn, StopRequest(at, "tree", limit, cause, now))

    def _ask(self, turn: SessionTurn, request: StopRequest) -> bool:
        waits = turn.waits
        first = turn.ask(request)
        if turn.request.at is StopAt.NOW or (waits and turn.request.at is not StopAt.TURN_END):
            turn.controller.abort(turn.request.reason or AbortReason())
        return first

    def gate(self, turn: SessionTurn) -> None:
        """Hear the turn's signal, whoever aborts it, until the turn has ended."""
        turn.gate = turn.signal.add_listener(lambda: self._loop_tasks.post(self._signalled, turn))
        if turn.signal.aborted:  # in the very moment of its acceptance: nobody was there to hear it
            self._signalled(turn)

    def _signalled(self, turn: SessionTurn) -> None:
        if turn.waits:
            self._left(turn)
        else:
            asked = turn.request.reason
            turn.ask(StopRequest(StopAt.NOW, "tree", None, turn.signal.reason, self._clock.monotonic()))
            # The host that goes aborts this signal too, with the reason it has asked with: that is nobody's stop.
            turn.asked_to_stop = turn.asked_to_stop or turn.signal.reason is not asked
            self._write_down(turn)

    def _write_down(self, turn: SessionTurn) -> None:
        """Only what is new: a stop that is asked for again changes nothing."""
        if not turn.asked_to_stop:
            return
        known, asked = turn.recorded, turn.request
        if turn.outcome is None and turn.result is None and (asked.at, asked.abandon) != (known.at, known.abandon):
            turn.recorded = turn.request
            self._record(turn, turn.request.reason or AbortReason())

    async def _settled(self, turn: SessionTurn, timeout: float | None) -> Receipt:
        limit = AbortSignal.never() if timeout is None else AbortSignal.timeout(timeout)
        return receipt_of((await limit.run(turn.until_ended())).outcome)
