"""Samples kept after they are first made, as far as they can be seen to stay the same."""

from __future__ import annotations

import os
import time
import weakref
from functools import partial
from statistics import median
from types import MethodType
from typing import TYPE_CHECKING, Any

from hasten.loader import random_states
from hasten.loader.batch_equality import difference
from hasten.loader.cache import file_access, packing
from hasten.loader.cache.kept_values import KeptValues, NewValue
from hasten.loader.cache.purity import PurityAnalysis
from hasten.loader.fingerprint import DEEP, fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hasten.loader.cache.store import Store

_DOUBLE_COUNT = 8
_DOUBLE_EVERY = 64
_SPOT_EVERY = 500
_MOST_FILES = 32
_JUDGED_COUNT = 64
_LEAST_KEPT_RATIO = 0.1
_OVERHEAD_NS = 30_000
_LENT_NS = 5_000
_LOOK_SHARE_RATIO = 0.1
_DREW_COUNT = 2
_OFF = b"off"


class Memo:
    """Keep what a function of a key returned, if it is seen to return the same again.

    An `Admission` decides what may be kept. A kept value is used while the files it was made
    from have the same stamps; now and then it is remade and compared.

    Args:
        store: where the bytes lie.
        salt: that of the same memo in another process, which sets its keys apart.
        roots: the objects whose code makes the values, and whose changes would change them.
            Without any, the maker is known: it draws nothing and reads one file only.

    Attributes:
        admission: decides what may be kept.
        off: why nothing is kept any more; empty where something is.
    """

    def __init__(
        self, store: Store, roots: tuple[Any, ...], *, salt: bytes = b"", off: str = ""
    ) -> None:
        self.store = store
        self.off = off
        self.salt = salt or os.urandom(12)
        self.made_of = RootWatch(roots)
        self.kept = KeptValues(store, self.salt, owns=not salt)
        self.admission = Admission(self.made_of)
        self._defers = self._is_looked_at = False
        self._pending: list[NewValue] = []
        self._before: Any = None
        self._use_count = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Memo, salt=self.salt, off=self.off), (self.store, self.made_of.roots)

    @property
    def why_not(self) -> str:
        """Why the code alone forbids keeping, or why this or another process gave up."""
        found = self.store.get(self.salt + _OFF)
        return self.made_of.code.why_not or self.off or (bytes(found).decode() if found else "")

    def begin_batch(self, count: int, *, lends: bool = False, defers: bool = False) -> None:
        """Note how the roots look before `count` values are fetched.

        Args:
            count: values of the batch.
            lends: later ones like it are lent.
            defers: nobody writes into them before the batch ends.
        """
        self.admission.batch_count, self.admission.lends = count, lends
        self._defers, self._is_looked_at = defers, False
        self._pending = []  # an item of the last batch may have raised
        self._before = None
        if not self.off:
            self.made_of.look()

    def end_batch(self) -> None:
        """Keep what was made since `begin_batch`, if the roots are unchanged and nothing drew."""
        pending, self._pending = self._pending, []
        if pending and self.made_of.changed():
            self.give_up("its samples change the dataset")
        if pending and not self.off and self.admission.lets_through(self._before, len(pending)):
            self.kept.keep(pending, self.admission.pack)
            if self.admission.why_over:
                self.give_up(self.admission.why_over)

    def fetch(self, name: bytes, make: Callable[[], Any], path: str | None = None) -> Any:
        """Return the value of `name`, from the store or from `make()`.

        Args:
            name: everything that the value depends on, except the roots and files.
            make: makes the value.
            path: a file that it reads in a way that would not be seen.
        """
        if self.off:
            return make()
        found, replaces = self.kept.find(name)
        if found is not None and self._is_unchanged():
            file_access.read(found.stamps)
            return self._use(found.make, make)
        if self.kept.is_full or self.off:
            return make()
        return self._make(name, make, path, replaces=replaces)

    def lend(self, names: Sequence[bytes]) -> list[Any] | None:
        """Return the values of a batch in the memory that keeps them: only read them.

        None where one of them is to be made, looked up or compared: begin and fetch them.
        """
        use_count = self._use_count + len(names)
        is_compared = use_count // _SPOT_EVERY > self._use_count // _SPOT_EVERY
        if self.off or is_compared or self.made_of.changed(brief=True):
            return None
        lent = self.kept.lent(names)
        if lent is not None:
            self._use_count = use_count
        return lent

    def has(self, name: bytes) -> bool:
        """Return whether the value of `name` is kept."""
        return not self.off and self.kept.has(name)

    def give_up(self, why: str) -> None:
        """Stop keeping values, and let the other processes know at their next pass."""
        self.off = why
        self.kept.forget()
        self.store.put(self.salt + _OFF, why.encode())

    def _is_unchanged(self) -> bool:
        """Look at the roots before the first kept value of a batch is used."""
        if not self._is_looked_at:
            self._is_looked_at = True
            if self.made_of.changed():
                self.give_up("the dataset changes while it is read")
        return not self.off

    def _use(self, build: Callable[[], Any], make: Callable[[], Any]) -> Any:
        value = build()
        self._use_count += 1
        if not self.made_of.has_roots or self._use_count % _SPOT_EVERY:
            return value
        live = make()  # what the script would have got, whatever the comparison shows
        if difference(value, live):
            self.give_up("a sample differs from what it was")
        return live

    def _make(
        self, name: bytes, make: Callable[[], Any], path: str | None, *, replaces: bool
    ) -> Any:
        if self._before is None:
            self._before = self.made_of.states()
        value, stamps = self.admission.make(make, path)
        if stamps is not None:
            new = NewValue(name, value, stamps, replaces, None)
            if not self.made_of.has_roots and not self._defers:
                self.kept.keep([new], self.admission.pack)
            elif self._defers:
                self._pending.append(new)
            elif parts := self.admission.pack(new):
                # Some are the value's own memory, which a transform may write into.
                self._pending.append(new._replace(parts=[b"".join(parts)]))
        if self.admission.why_over:
            self.give_up(self.admission.why_over)
        return value


class RootWatch:
    """The objects whose code makes a memo's values, watched for draws and changes.

    They are held weakly where possible, so a script that makes a dataset per fold holds only one
    at a time.

    Attributes:
        code: what makes the values, as far as it is followed.
        look_ns: nanoseconds that the quickest look at them took.
    """

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self.has_roots = bool(roots)
        self.look_ns = 0
        self._roots = tuple(map(_held, roots))
        self.code = PurityAnalysis(*roots)
        self._private: random_states.Private | None = None
        self._seen: dict[bool, Any] = {}

    @property
    def roots(self) -> tuple[Any, ...]:
        """The objects, as given."""
        return tuple(root() for root in self._roots)

    @property
    def draws_privately(self) -> bool:
        """Whether they hold generators of their own, whose draws cannot be taken back."""
        return bool(random_states.Private(*self.roots).found)

    def changed(self, *, brief: bool = False) -> bool:
        """Return whether they look different from the first call, so that values may differ too.

        Args:
            brief: look at long containers and arrays only from outside, as no value is made.
        """
        if not self.has_roots:
            return False
        self.look()
        return bool(self._look(brief=brief) != self._seen[brief])

    def look(self) -> None:
        """Note how they look, the first time."""
        if self.has_roots and not self._seen:
            self._seen = {each: self._look(brief=each) for each in (True, False)}

    def _look(self, *, brief: bool) -> list[Any]:
        began_ns = time.perf_counter_ns()
        look = partial(fingerprint, brief=brief, deepest=DEEP)
        found = [*map(look, self.roots), *(look(value, 1) for value in self.code.outside())]
        if not brief:
            took_ns = time.perf_counter_ns() - began_ns
            self.look_ns = min(took_ns, self.look_ns or took_ns)
        return found

    def states(self) -> Any:
        """Return the states of all generators that they can draw from."""
        if not self.has_roots:
            return None
        if self._private is None:
            self._private = random_states.Private(*self.roots)
        return random_states.read(), self._private.read()


class Admission:
    """Makes values, and decides which of them may be kept.

    A value is kept if making it drew from no generator, left the objects it is made
    from unchanged and opened files only to read them, and if it can be packed. The first few values
    are made twice. If they differ, share memory with the dataset, or cost no more than their
    copy, nothing is kept any more.

    Reading the generators takes longer than making a small value. So they are read before and
    after a batch, and around values made twice. If a batch draws, nothing of it is kept, and
    from then on they are read around each value.

    Attributes:
        lends: kept values are lent, which takes less time than to copy them.
        why_over: why nothing is to be kept any more; empty where something is.
    """

    def __init__(self, made_of: RootWatch) -> None:
        self.batch_count = 1
        self.lends = False
        self.why_over = ""
        self._made_of = made_of
        self._try_count = self._keep_count = self._drew_count = 0
        self._live_ns: list[int] = []
        self._copy_ns: list[int] = []
        self._watches_each = False

    @property
    def kept_share(self) -> float:
        """The share of the values made here that were kept; 1 before any was."""
        return self._keep_count / self._try_count if self._try_count else 1.0

    @property
    def mostly_draws(self) -> bool:
        """Whether most of the values made here drew random numbers."""
        return self._drew_count >= _DREW_COUNT and self._drew_count > self._keep_count

    def make(
        self, make: Callable[[], Any], path: str | None
    ) -> tuple[Any, tuple[file_access.Stamp, ...] | None]:
        """Return the value, and the stamps of its files where it may be kept."""
        has_roots = self._made_of.has_roots
        number = self._try_count + 1
        doubles = number <= _DOUBLE_COUNT or number % _DOUBLE_EVERY == 0
        before = self._made_of.states() if self._watches_each or doubles else None
        opened = file_access.record() if has_roots else file_access.FileAccessRecord()
        began_ns = time.perf_counter_ns()
        try:
            if path is not None:
                opened.takes(path)
            value = make()
        finally:
            if has_roots:
                file_access.stop()  # this also informs an enclosing record
            else:
                file_access.read(opened.stamps.values())
        live_ns = time.perf_counter_ns() - began_ns
        if opened.unsettled:
            return value, None
        self._try_count += 1
        stamps = tuple(opened.stamps.values())
        why = self._why_not(value, make if doubles else None, before, opened)
        if not why and self._keep_count < _DOUBLE_COUNT:
            why = self._compare_copy(value, live_ns)
        if why:
            self._leave_out(why)
            return value, None
        self._keep_count += 1
        return value, stamps

    def pack(self, new: NewValue) -> list[Any] | None:
        """Return the parts of a value that may be kept; None where it cannot be."""
        try:
            return packing.pack(new.value, new.stamps)
        except Exception as error:  # a foreign object may raise anything
            self._keep_count -= 1
            self._leave_out(f"a sample holds {error}")
            return None

    def _leave_out(self, why: str) -> None:
        is_rare = self._keep_count < _LEAST_KEPT_RATIO * self._try_count
        if not self.why_over and self._try_count >= _JUDGED_COUNT and is_rare:
            self.why_over = why

    def _why_not(
        self, value: Any, again: Callable[[], Any] | None, before: Any,
        opened: file_access.FileAccessRecord,
    ) -> str:  # fmt: skip
        """Return why a value may not be kept; empty where it may. `again` makes it once more."""
        if before is not None and self._made_of.states() != before:
            self._drew_count += 1
            return "its samples draw random numbers"
        if opened.why_not or len(opened.stamps) > _MOST_FILES:
            return opened.why_not or "a sample reads many files"
        if not self._made_of.has_roots:
            return ""
        if again is not None:
            self._make_again(value, again, before)
        return self.why_over

    def lets_through(self, before: Any, count: int) -> bool:
        """Return whether `count` values may be kept of a batch that began with states `before`."""
        if self._watches_each or self._made_of.states() == before:
            return True
        self._watches_each = True
        self._keep_count -= count
        return False

    def _make_again(self, value: Any, make: Callable[[], Any], before: Any) -> None:
        if self._made_of.changed():  # making it again would change it again
            self.why_over = "its samples change the dataset"
            return
        again = make()
        if self._made_of.states() != before:
            random_states.restore(before[0])
            self.why_over = "its samples draw random numbers, though not always"
        elif found := difference(value, again, "sample"):
            self.why_over = f"made twice, a sample differs ({found})"
        elif set(packing.places(value)) & set(packing.places(again)):
            self.why_over = "its samples are the dataset's own memory"

    def _compare_copy(self, value: Any, live_ns: int) -> str:
        """Copy a value once; return why it may not be kept if the copy differs or costs more."""
        try:
            joined = bytearray(b"".join(packing.pack(value)))
        except Exception as error:  # a foreign object may raise anything
            return f"a sample holds {error}"
        began_ns = time.perf_counter_ns()
        copy = packing.unpack(joined)
        copy_ns = time.perf_counter_ns() - began_ns + _OVERHEAD_NS
        self._copy_ns.append(min(copy_ns, _LENT_NS) if self.lends else copy_ns)
        self._live_ns.append(live_ns)
        if found := difference(copy, value, "sample"):
            self.why_over = f"a copy of a sample differs ({found})"
        elif self._keep_count == _DOUBLE_COUNT - 1:
            self._compare_costs()
        return self.why_over

    def _compare_costs(self) -> None:
        live_ns = median(self._live_ns)  # other processes may have run in between
        if live_ns < 1.25 * median(self._copy_ns):
            self.why_over = "a sample is made as fast as it is copied"
        batch_ns = self.batch_count * live_ns
        if self._made_of.look_ns > _LOOK_SHARE_RATIO * batch_ns:
            self.why_over = "to see whether the dataset changed takes as long as its samples"


def _held(root: Any) -> Callable[[], Any]:
    """Return what gives an object back while somebody else holds it, or always."""
    if isinstance(root, MethodType):  # a new one at each access
        return lambda: root
    try:
        return weakref.ref(root)
    except TypeError:
        return lambda: root
