"""The fence: before the abort it is the resource, after the abort it answers nothing but the end of a block."""

import asyncio
import datetime
import enum
import functools
import math
import operator
import os
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from safepoint.abort import AbortController, AbortError, AbortSignal, AbortTimeout, fence

pytestmark = pytest.mark.backends("asyncio", "uvloop", "eager")


class Mood(enum.Enum):
    GOOD = 1


class Part:
    def __init__(self):
        self.level = 1

    def turn(self):
        self.level += 1
        return self.level


class Resource:
    """Something with every kind of access, which writes down what reached it."""

    kind = "resource"

    def __init__(self):
        self.story = []
        self.part = Part()
        self.items = {"a": 1}
        self.mood = Mood.GOOD
        self.born = datetime.date(2024, 1, 2)
        self.price = Decimal("1.5")
        self.partial = functools.partial(self.work, 1)

    @property
    def computed(self):
        self.story.append("computed")
        return 7

    def work(self, *args, **kwargs):
        self.story.append(("work", args, kwargs))
        return self

    async def fetch(self, value):
        self.story.append("fetch began")
        await asyncio.sleep(0)
        return value

    def __call__(self, value):
        self.story.append("called")
        return value

    def __getitem__(self, key):
        return self.items[key]

    def __setitem__(self, key, value):
        self.items[key] = value

    def __delitem__(self, key):
        del self.items[key]

    def __len__(self):
        return len(self.items)

    def __contains__(self, key):
        return key in self.items

    def __bool__(self):
        return True

    def __iter__(self):
        return iter(range(3))

    async def __aiter__(self):
        for number in range(3):
            yield number

    def __enter__(self):
        self.story.append("entered")
        return self

    def __exit__(self, *error):
        self.story.append(("left", error[0]))

    async def __aenter__(self):
        await asyncio.sleep(0)
        self.story.append("entered")
        return self

    async def __aexit__(self, *error):
        await asyncio.sleep(0)
        self.story.append(("left", error[0]))

    def __eq__(self, other):
        return isinstance(other, Resource)

    def __hash__(self):
        return 4711

    def __str__(self):
        return "a resource"

    def __repr__(self):
        return "Resource()"


def fenced():
    """A resource, its fence, and the controller that closes it."""
    resource, controller = Resource(), AbortController()
    return resource, fence(resource, controller.signal), controller


ACCESSES = {
    "a method": lambda resource: resource.work(),
    "a call": lambda resource: resource(1),
    "an attribute": lambda resource: resource.kind,
    "a property": lambda resource: resource.computed,
    "an attribute that is not there": lambda resource: resource.missing,
    "setting": lambda resource: setattr(resource, "kind", "other"),
    "deleting": lambda resource: delattr(resource, "part"),
    "an item": lambda resource: resource["a"],
    "setting an item": lambda resource: operator.setitem(resource, "a", 2),
    "deleting an item": lambda resource: operator.delitem(resource, "a"),
    "the length": len,
    "containing": lambda resource: "a" in resource,
    "the truth": bool,
    "iterating": iter,
    "async iterating": aiter,
    "entering": lambda resource: resource.__enter__(),
    "entering a block": lambda resource: type(resource).__enter__(resource),
}


@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES.keys())
def test_after_the_abort_no_access_reaches_the_resource(access):
    resource, stand_in, controller = fenced()
    controller.abort("stop")
    with pytest.raises(AbortError) as caught:
        access(stand_in)
    assert caught.value.reason is controller.signal.reason
    assert resource.story == []
    assert resource.items == {"a": 1}
    assert resource.kind == "resource"
    assert hasattr(resource, "part")


def test_a_call_passes_its_arguments_and_gives_what_the_resource_gives():
    resource, stand_in, _ = fenced()
    assert stand_in.work(1, b=2) is resource
    assert stand_in(3) == 3
    assert resource.story == [("work", (1,), {"b": 2}), "called"]


def test_a_method_taken_before_the_abort_does_nothing_after_it():
    resource, stand_in, controller = fenced()
    work, partial, bound = stand_in.work, stand_in.partial, stand_in.__len__
    assert work.__name__ == "work"
    controller.abort()
    for taken in (work, partial, bound):
        with pytest.raises(AbortError):
            taken()
    assert resource.story == []


def test_a_callable_attribute_is_called_through_the_fence():
    resource, stand_in, _ = fenced()
    stand_in.partial(b=2)
    assert resource.story == [("work", (1,), {"b": 2})]


def test_attributes_can_be_read_set_and_deleted():
    resource, stand_in, _ = fenced()
    assert stand_in.kind == "resource"
    assert stand_in.computed == 7
    stand_in.kind = "other"
    assert resource.kind == "other"
    del stand_in.kind
    assert resource.kind == "resource"
    with pytest.raises(AttributeError, match="missing"):
        stand_in.missing  # noqa: B018  # reading it is the test


def test_no_name_of_the_resource_is_hidden_by_the_fence():
    class Odd:
        _fenced = "theirs"
        _signal = "theirs"
        _pass = "theirs"

    stand_in = fence(Odd(), AbortSignal.never())
    assert (stand_in._fenced, stand_in._signal, stand_in._pass) == ("theirs",) * 3


def test_objects_reached_through_attributes_are_fenced_too():
    resource, stand_in, controller = fenced()
    part, turn = stand_in.part, stand_in.part.turn
    items, clear = stand_in.items, stand_in.items.clear
    assert turn() == 2
    assert part.level == 2
    assert items["a"] == 1
    controller.abort()
    for access in (turn, lambda: part.level, lambda: items["a"], lambda: items.update(b=2), clear):
        with pytest.raises(AbortError):
            access()
    assert resource.part.level == 2
    assert resource.items == {"a": 1}


def test_plain_values_are_what_they_are():
    _, stand_in, _ = fenced()
    assert stand_in.mood is Mood.GOOD
    assert stand_in.born < datetime.date(2024, 1, 3)
    assert stand_in.price + 1 == Decimal("2.5")
    assert type(stand_in.kind) is str


def test_items_can_be_read_set_deleted_counted_and_looked_for():
    resource, stand_in, _ = fenced()
    stand_in["b"] = 2
    assert stand_in["b"] == 2
    assert len(stand_in) == 2
    assert "b" in stand_in
    assert "c" not in stand_in
    del stand_in["b"]
    assert resource.items == {"a": 1}
    assert bool(stand_in) is True
    assert not fence([], AbortSignal.never())


def test_iterating_stops_at_the_abort_before_the_next_item():
    pulled, seen = [], []

    def source():
        for number in range(5):
            pulled.append(number)
            yield number

    controller = AbortController()
    with pytest.raises(AbortError):
        for number in fence(source(), controller.signal):
            seen.append(number)
            if number == 1:
                controller.abort()
    assert seen == pulled == [0, 1]
    assert list(fence([1, 2], AbortSignal.never())) == [1, 2]


def test_an_iterator_gives_its_next_item_until_the_abort():
    controller = AbortController()
    stand_in = fence(iter([1, 2, 3]), controller.signal)
    assert next(stand_in) == 1
    controller.abort()
    with pytest.raises(AbortError):
        next(stand_in)


def test_what_cannot_be_iterated_says_so_at_once():
    with pytest.raises(TypeError, match="not iterable"):
        iter(fence(7, AbortSignal.never()))  # type: ignore[call-overload]  # the mistake under test


async def test_async_iterating_stops_at_the_abort_before_the_next_item():
    pulled, seen = [], []

    async def source():
        for number in range(5):
            pulled.append(number)
            yield number

    controller, chunks = AbortController(), source()
    with pytest.raises(AbortError):
        async for number in fence(chunks, controller.signal):
            seen.append(number)
            if number == 1:
                controller.abort()
    assert seen == pulled == [0, 1]
    await chunks.aclose()
    assert [number async for number in fence(Resource(), AbortSignal.never())] == [0, 1, 2]


async def test_an_async_iterator_gives_its_next_item_until_the_abort():
    controller, chunks = AbortController(), Resource().__aiter__()
    stand_in = fence(chunks, controller.signal)
    assert await anext(stand_in) == 0
    controller.abort()
    with pytest.raises(AbortError):
        await anext(stand_in)
    await chunks.aclose()


async def test_breaking_off_an_async_iteration_leaves_nothing_for_the_garbage_collector():
    class Endless:
        def __aiter__(self):
            return self

        async def __anext__(self):
            return 1

    left: list[object] = []
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=left.append, finalizer=left.append)
    try:
        async for _ in fence(Endless(), AbortSignal.never()):
            break
    finally:
        sys.set_asyncgen_hooks(*before)
    assert left == []


def test_a_with_block_is_entered_through_the_fence_and_may_be_left_after_the_abort():
    resource, stand_in, controller = fenced()
    with pytest.raises(AbortError), stand_in as entered:
        assert entered is stand_in
        entered.work()
        controller.abort()
        entered.work()
    assert resource.story == ["entered", ("work", (), {}), ("left", AbortError)]


def test_what_a_with_block_gives_is_not_fenced_when_it_is_something_else():
    class Pool:
        def __init__(self):
            self.given = object()

        def __enter__(self):
            return self.given

        def __exit__(self, *error):
            return True

    pool = Pool()
    with fence(pool, AbortSignal.never()) as given:
        assert given is pool.given
        raise ZeroDivisionError("which leaving swallows")


async def test_an_async_with_block_is_entered_through_the_fence_and_may_be_left_after_the_abort():
    resource, stand_in, controller = fenced()
    with pytest.raises(AbortError):
        async with stand_in as entered:
            assert entered is stand_in
            controller.abort()
            entered.work()
    assert resource.story == ["entered", ("left", AbortError)]
    with pytest.raises(AbortError):
        async with stand_in:
            pytest.fail("not entered")


async def test_what_an_async_with_block_gives_is_not_fenced_when_it_is_something_else():
    class Pool:
        async def __aenter__(self):
            return self_given

        async def __aexit__(self, *error):
            return None

    self_given = object()
    async with fence(Pool(), AbortSignal.never()) as given:
        assert given is self_given


async def test_a_coroutine_method_is_awaited_as_it_is():
    resource, stand_in, _ = fenced()
    assert await stand_in.fetch("value") == "value"
    assert resource.story == ["fetch began"]


async def test_a_coroutine_made_before_the_abort_does_not_begin_after_it():
    resource, stand_in, controller = fenced()
    fetching = stand_in.fetch("value")
    controller.abort()
    with pytest.raises(AbortError):
        await fetching
    assert resource.story == []


async def test_a_fenced_coroutine_function_does_not_begin_after_the_abort_either():
    story = []

    async def fetch(value):
        story.append(value)
        return value

    controller = AbortController()
    stand_in = fence(fetch, controller.signal)
    assert await stand_in("first") == "first"
    fetching = stand_in("second")
    controller.abort()
    with pytest.raises(AbortError):
        await fetching
    assert story == ["first"]


async def test_a_coroutine_that_has_begun_goes_on_after_the_abort():
    resource, controller = Resource(), AbortController()
    task = asyncio.create_task(fence(resource, controller.signal).fetch("value"))
    await asyncio.sleep(0)
    assert resource.story == ["fetch began"]
    controller.abort()
    assert await task == "value"


def test_it_looks_like_the_resource_also_after_the_abort():
    resource, stand_in, controller = fenced()
    for _ in range(2):
        assert isinstance(stand_in, Resource)
        assert stand_in.__class__ is Resource
        assert stand_in == resource
        assert resource == stand_in
        assert stand_in != 7
        assert hash(stand_in) == hash(resource)
        assert {resource: "found"}[stand_in] == "found"
        assert str(stand_in) == f"{stand_in}" == "a resource"
        assert repr(stand_in) == "fence(Resource())"
        controller.abort()


def test_a_deadline_closes_the_fence_with_a_timeout(clock):
    stand_in = fence(Resource(), AbortSignal.timeout(5))
    clock.advance(4.9)
    stand_in.work()
    clock.advance(0.1)
    with pytest.raises(AbortTimeout):
        stand_in.work()


def test_a_fence_in_a_fence_is_closed_by_either_signal():
    for number in range(2):
        resource, controllers = Resource(), [AbortController(), AbortController()]
        stand_in = fence(fence(resource, controllers[0].signal), controllers[1].signal)
        stand_in.work()
        controllers[number].abort()
        with pytest.raises(AbortError):
            stand_in.work()
        assert len(resource.story) == 1


@pytest.mark.parametrize("signal", [None, AbortController(), "signal"], ids=lambda signal: type(signal).__name__)
def test_a_fence_needs_a_signal(signal):
    with pytest.raises(TypeError, match=f"^signal must be an AbortSignal, not {type(signal).__name__}$"):
        fence(Resource(), signal)


class Matrix:
    """Like an array: operators give new ones, or change it in place, and a comparison gives no bool."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def __add__(self, other):
        return Matrix(*(number + other for number in self.numbers))

    __radd__ = __add__

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.numbers, other.numbers, strict=True))

    def __iadd__(self, other):
        self.numbers = [number + other for number in self.numbers]
        return self

    def __eq__(self, other):
        return [number == other for number in self.numbers]

    def __ne__(self, other):
        return [number != other for number in self.numbers]

    def __hash__(self):
        return id(self)


def test_a_path_can_be_used_as_a_path(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    root = fence(tmp_path, AbortSignal.never())
    assert root / "a.txt" == tmp_path / "a.txt"
    assert "x" / fence(Path("y"), AbortSignal.never()) == Path("x/y")
    assert Path("/x") / root == tmp_path
    assert os.fspath(root) == str(tmp_path)
    assert os.path.exists(root), "and is not taken for the number of an open file"
    assert os.listdir(root) == ["a.txt"]
    with open(fence(tmp_path / "a.txt", AbortSignal.never())) as file:
        assert file.read() == "a"
    assert sorted([root, tmp_path.parent]) == [tmp_path.parent, tmp_path]
    assert f"{fence(1.5, AbortSignal.never()):6.2f}" == "  1.50"


def test_what_is_no_path_says_so():
    with pytest.raises(TypeError, match="not Resource"):
        os.fspath(fenced()[1])
    with pytest.raises(TypeError, match="'Resource' and 'int'"):
        fenced()[1] + 1


def test_operators_reach_the_resource_from_either_side_and_between_fences():
    never = AbortSignal.never()
    matrix = fence(Matrix(1, 2), never)
    assert (matrix + 1).numbers == (1 + matrix).numbers == [2, 3]
    assert matrix @ matrix == 5
    assert type(matrix + 1) is Matrix, "what an operator returns is not fenced"
    assert (matrix == 1) == [True, False]
    assert (matrix != 1) == [False, True]
    assert fence(3, never) == fence(3, never)
    assert (fence(3, never) != fence(3, never)) is False
    assert fence([1], never) + fence([2], never) == [1, 2]
    assert [1] + fence([2], never) == [1, 2]  # noqa: RUF005  # the operator is the test


def test_numbers_are_converted_rounded_and_divided():
    number = fence(-7.5, AbortSignal.never())
    assert (-number, +number, abs(number), int(number), float(number)) == (7.5, -7.5, 7.5, -7, -7.5)
    assert (round(number), round(number, 1), math.trunc(number), math.floor(number)) == (-8, -7.5, -7, -8)
    assert (math.ceil(number), complex(number), divmod(number, 2)) == (-7, -7.5 + 0j, divmod(-7.5, 2))
    assert (divmod(20, number), 2**number, number // 2) == (divmod(20, -7.5), 2**-7.5, -4)
    assert (~fence(5, AbortSignal.never()), bytes(fence([1], AbortSignal.never()))) == (-6, b"\x01")
    assert (number < 0, number <= 0, number > 0, number >= 0) == (True, True, False, False)
    assert list(reversed(fence([1, 2], AbortSignal.never()))) == [2, 1]


def test_changing_in_place_keeps_the_fence():
    controller, matrix = AbortController(), Matrix(1, 2)
    stand_in = fence(matrix, controller.signal)
    before = stand_in
    stand_in += 1
    assert stand_in is before
    assert matrix.numbers == [2, 3]
    number = fence(3, controller.signal)
    number += 1
    assert type(number) is int, "a new value is not fenced"
    controller.abort()
    with pytest.raises(AbortError):
        stand_in += 1
    assert matrix.numbers == [2, 3]


def test_no_fence_gets_into_the_resource_by_changing_its_parts_in_place():
    resource, stand_in, _ = fenced()
    stand_in.story += ["more"]
    assert resource.story == ["more"]
    assert type(resource.story) is list
    resource.items["list"] = items = [1]
    stand_in["list"] += [2]
    stand_in["copy"] = stand_in.story
    assert resource.items["list"] is items
    assert items == [1, 2]
    assert type(resource.items["copy"]) is list


def test_another_fence_stays_one_inside_the_resource():
    resource, stand_in, _ = fenced()
    other = fence([1], AbortSignal.never())
    stand_in.other = other
    assert resource.other is other


OPERATIONS = {
    "adding": lambda thing: thing + 1,
    "being added": lambda thing: 1 + thing,
    "between fences": lambda thing: fence(Matrix(1), AbortSignal.never()) @ thing,
    "ordering": lambda thing: thing < 1,
    "a path": os.fspath,
    "negating": operator.neg,
    "a number": float,
    "bytes": bytes,
    "rounding": round,
    "backwards": reversed,
    "dividing": lambda thing: divmod(thing, 2),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_after_the_abort_no_operator_reaches_the_resource(operation):
    controller = AbortController()
    stand_in = fence(Matrix(1), controller.signal)
    controller.abort("stop")
    with pytest.raises(AbortError):
        operation(stand_in)


def test_a_capsule_is_handed_on_as_it_is():
    """As arrays give them to the C code of others, which looks at the real type."""

    class Array:
        capsule = datetime.datetime_CAPI

    assert fence(Array(), AbortSignal.never()).capsule is Array.capsule
