"""The state as a whole: copies that share nothing, joins that lose nothing, JSON that comes back the same."""

import collections
import enum
import math
import threading
import warnings
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr

from safepoint.errors import UsageError
from safepoint.flow import JoinConflict
from safepoint.flow.state import clone, dump, first_parameter, load, merge


@dataclass
class Plain:
    number: int = 0
    words: list[str] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)


@dataclass
class Deep:
    parts: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    words: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    number: int = 0
    words: list[str] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class FrozenSlotted:
    words: list[str] = field(default_factory=list)


class Base:
    __slots__ = ("extra",)
    extra: str


@dataclass(slots=True)
class SlottedBelow(Base):
    number: int = 0


@dataclass
class Unset:
    number: int = 0
    later: str = field(init=False)


@dataclass
class ListLike(list[str]):
    number: int = 0


@dataclass
class DictLike(dict[str, int]):
    number: int = 0


class Model(BaseModel):
    words: list[str] = []
    _secret: list[str] = PrivateAttr(default_factory=list)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    words: list[str] = []


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    words: list[str] = []
    other: list[str] = []


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    when: datetime = datetime(2026, 1, 2)
    pair: tuple[int, int] = (1, 2)
    bag: set[str] = {"a"}


class Bare:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.number = 0


class Colour(enum.Enum):
    RED = "red"


STATES = [
    Plain(1, ["a"], {"b": 2}),
    Deep([["a"], ["b"]]),
    Frozen(["a"]),
    Slotted(1, ["a"]),
    FrozenSlotted(["a"]),
    {"words": ["a"], "deep": {"x": [1]}},
    ["a", ["b"]],
    {"a", "b"},
    Model(words=["a"]),
    Open.model_validate({"words": ["a"], "more": ["b"]}),
    FrozenModel(words=["a"]),
    collections.OrderedDict(a=[1]),
    collections.Counter("aab"),
    7,
    "text",
    None,
    Colour.RED,
    (1, [2]),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_clone_is_equal_of_the_same_type_and_shares_nothing_that_changes(state: Any):
    copy = clone(state)
    assert type(copy) is type(state)
    assert copy == state
    assert not mutable_ids(copy) & mutable_ids(state)


def mutable_ids(value: Any) -> set[int]:
    """The identities of all that can be changed in there."""
    found: set[int] = set()
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, int | str | bytes | float | complex | enum.Enum | None):
            continue
        if not isinstance(each, tuple):
            found.add(id(each))
        if isinstance(each, dict):
            todo += each.values()
        elif isinstance(each, list | set | tuple):
            todo += each
        todo += getattr(each, "__dict__", {}).values()
        todo += [getattr(each, name) for name in getattr(type(each), "__slots__", ()) if hasattr(each, name)]
    return found


def test_two_fields_that_are_one_list_stay_one():
    words: list[str] = []
    state = {"a": words, "b": words}
    copy = clone(state)
    copy["a"].append("x")
    assert copy["b"] == ["x"]
    assert words == []

    @dataclass
    class Twice:
        a: list[str]
        b: list[str]

    twice = clone(Twice(words, words))
    assert twice.a is twice.b
    assert twice.a is not words


def test_private_attributes_of_a_model_are_copied_too():
    model = Model(words=["a"])
    model._secret.append("s")
    copy = clone(model)
    assert copy._secret == ["s"]
    copy._secret.append("t")
    assert model._secret == ["s"]


def test_what_is_not_a_field_is_copied_too():
    state = Plain()
    state.extra = ["x"]  # type: ignore[attr-defined]
    copy: Any = clone(state)
    assert copy.extra == ["x"]
    assert copy.extra is not state.extra  # type: ignore[attr-defined]
    below: Any = SlottedBelow(3)
    below.extra = "kept"
    assert clone(below).extra == "kept"


def test_a_field_that_is_not_set_stays_unset():
    copy = clone(Unset(3))
    assert copy.number == 3
    assert not hasattr(copy, "later")


def test_dataclasses_that_are_containers_keep_their_items():
    listed = ListLike(2)
    listed.append("a")
    copy = clone(listed)
    assert (list(copy), copy.number) == (["a"], 2)
    keyed = DictLike(2)
    keyed["a"] = 1
    assert (dict(clone(keyed)), clone(keyed).number) == ({"a": 1}, 2)


def test_a_dataclass_that_says_how_it_is_copied_is_asked():
    @dataclass
    class Own:
        number: int = 0

        def __deepcopy__(self, memo: object) -> "Own":
            return Own(self.number + 100)

    assert clone(Own(1)).number == 101

    @dataclass
    class Reduced:
        number: int = 0

        def __reduce__(self) -> tuple[Any, ...]:
            return Reduced, (self.number + 100,)

    assert clone(Reduced(1)).number == 101


def test_a_state_that_cannot_be_copied_is_refused_with_the_fix():
    with pytest.raises(UsageError, match=r"dict cannot be copied.*services"):
        clone({"lock": threading.Lock()})


plain_states = st.builds(
    Plain, st.integers(), st.lists(st.text(max_size=3), max_size=3), st.dictionaries(st.text(max_size=2), st.integers())
)


@given(plain_states)
def test_a_clone_is_worth_the_original_and_changing_it_changes_nothing(state: Plain):
    before = dump(state)
    copy = clone(state)
    assert copy == state
    copy.words.append("x")
    copy.index["x"] = 1
    copy.number += 1
    assert dump(state) == before


def test_fields_that_one_branch_changed_are_taken():
    base = Plain(1, ["a"])
    merged = merge(base, {"x": Plain(1, ["a", "b"]), "y": Plain(2, ["a"])})
    assert merged == Plain(2, ["a", "b"])
    assert base == Plain(1, ["a"])


def test_two_branches_that_changed_a_field_alike_agree():
    assert merge(Plain(1), {"x": Plain(2), "y": Plain(2)}) == Plain(2)


def test_two_branches_that_changed_a_field_differently_are_a_conflict_that_names_them():
    with pytest.raises(JoinConflict, match=r"'x' and 'y' both changed 'number'.*join="):
        merge(Plain(1), {"x": Plain(2), "y": Plain(3)})


def test_a_value_that_is_not_equal_to_itself_is_not_a_change():
    nan = {"score": math.nan, "words": list[str]()}
    merged = merge(nan, {"x": {**clone(nan), "words": ["x"]}, "y": clone(nan)})
    assert merged["words"] == ["x"]


def test_keys_that_a_branch_added_or_removed_are_added_or_removed():
    base = {"old": 1, "keep": 2}
    assert merge(base, {"x": {"keep": 2}, "y": {"old": 1, "keep": 2, "new": 3}}) == {"keep": 2, "new": 3}
    with pytest.raises(JoinConflict, match="'old'"):
        merge(base, {"x": {"keep": 2}, "y": {"old": 9, "keep": 2}})


@pytest.mark.parametrize("kind", [Bare, Slotted, Model])
def test_states_of_all_kinds_are_joined(kind: Any):
    base = kind()
    one, two = clone(base), clone(base)
    one.words.append("one")
    if kind is not Model:
        two.number = 2
    merged = merge(base, {"one": one, "two": two})
    assert merged.words == ["one"]
    assert kind is Model or merged.number == 2


def test_frozen_states_are_joined():
    base = FrozenModel()
    one, two = clone(base), clone(base)
    one.words.append("one")
    two.other.append("two")
    assert merge(base, {"one": one, "two": two}) == FrozenModel(words=["one"], other=["two"])
    assert merge(Frozen(), {"one": Frozen(["one"]), "two": Frozen()}) == Frozen(["one"])
    assert merge(FrozenSlotted(), {"one": FrozenSlotted(["one"])}) == FrozenSlotted(["one"])


def test_extra_and_private_fields_of_models_are_joined():
    merged = merge(Open(), {"one": Open.model_validate({"more": 1}), "two": Open(words=["two"])})
    assert merged == Open.model_validate({"words": ["two"], "more": 1})
    base = Model()
    one = clone(base)
    one._secret.append("s")
    assert merge(base, {"one": one, "two": clone(base)})._secret == ["s"]


def test_a_state_without_fields_is_joined_as_a_whole():
    assert merge(5, {"x": 5, "y": 6}) == 6
    assert merge(["a"], {"x": ["a", "b"], "y": ["a"]}) == ["a", "b"]
    with pytest.raises(JoinConflict, match="'x' and 'y' both changed"):
        merge(["a"], {"x": ["b"], "y": ["c"]})


@pytest.mark.parametrize(
    "state",
    [
        Plain(1, ["a"], {"b": 2}),
        Slotted(1, ["a"]),
        Model(words=["ä", "\u2028"]),
        Strict(),
        {"a": [1, None, 2.5]},
        [1, 2],
        "text",
        5,
        Plain(1, ["half a pair: \ud83d"]),
    ],
    ids=lambda state: type(state).__name__,
)
def test_json_comes_back_as_it_was(state: Any):
    back = load(type(state), dump(state))
    assert type(back) is type(state)
    assert back == state


def test_typed_fields_come_back_with_their_types():
    @dataclass
    class Typed:
        when: datetime
        took: timedelta
        where: Path
        bag: set[int]
        pair: tuple[int, str]
        by_number: dict[int, str]
        colour: Colour
        raw: bytes
        score: float

    state = Typed(datetime(2026, 1, 2), timedelta(3), Path("x"), {1, 2}, (1, "a"), {7: "b"}, Colour.RED, b"x", math.inf)
    assert load(Typed, dump(state)) == state


def test_what_json_cannot_hold_is_refused_with_the_fix():
    with pytest.raises(UsageError, match=r"(?s)Bare cannot be written as JSON.*services"):
        dump(Bare())
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        dump({"lock": threading.Lock()})


def test_loading_does_not_share_with_the_data():
    data = {"words": ["a"]}
    load(dict, data)["words"].append("b")
    assert data == {"words": ["a"]}


def test_the_type_of_a_state_is_that_of_the_first_parameter():
    def node(state: Plain, ctx: object) -> None: ...

    def untyped(state, ctx) -> None: ...

    def unknown(state: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    class Callable_:
        def method(self, state: Plain) -> None: ...

    assert first_parameter(node) is Plain
    assert first_parameter(untyped) is None
    assert first_parameter(unknown) is None
    assert first_parameter(Callable_().method) is Plain
    assert first_parameter(lambda: None) is None


def test_what_would_not_come_back_is_refused_when_it_is_written():
    wrong: Any = Plain(0, [5])  # type: ignore[list-item]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UsageError, match=r"(?s)Plain cannot be written as JSON.*str"):
            dump(wrong)
