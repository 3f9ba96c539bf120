import pytest

from legato.cache.block_tables import BlockTables
from legato.core.types import FinishReason
from legato.scheduler.state import Event, Sequence, State, transition
from support.driving import make_request

ENDS = {
    Event.STOP: FinishReason.STOP,
    Event.LENGTH: FinishReason.LENGTH,
    Event.ABORT: FinishReason.ABORT,
    Event.ERROR: FinishReason.ERROR,
}
PATHS = {
    State.WAITING: (),
    State.RUNNING: (Event.ADMIT,),
    State.PREEMPTED: (Event.ADMIT, Event.PREEMPT),
    State.FINISHED: (Event.ADMIT, Event.STOP),
}
ALLOWED = {
    State.WAITING: {Event.ADMIT, Event.ABORT, Event.ERROR},
    State.RUNNING: {Event.PREEMPT, *ENDS},
    State.PREEMPTED: {Event.ADMIT, Event.STOP, Event.ABORT, Event.ERROR},
    State.FINISHED: set(),
}


def sequence_in(state):
    sequence = Sequence(make_request("r", [1]), 0, 16, BlockTables(1))
    for event in PATHS[state]:
        transition(sequence, event)
    assert sequence.state is state
    return sequence


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_event_in_every_state(state, event):
    sequence = sequence_in(state)
    if event not in ALLOWED[state]:
        with pytest.raises(ValueError, match=f"choice 0 of request r is {state.name} and cannot take {event.name}"):
            transition(sequence, event)
        assert sequence.state is state
        return
    transition(sequence, event)
    assert sequence.finish_reason == ENDS.get(event)
    assert (sequence.state is State.FINISHED) == (event in ENDS)
