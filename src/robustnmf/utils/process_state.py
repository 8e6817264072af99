"""Settings of the whole process that the package changes: each is changed and restored here, and nowhere else.

A setting is changed while any thread needs it. It is restored when the last of them is done, whatever ended it:
success, an error, or Ctrl-C at any moment. A process that is forked meanwhile begins with the settings restored.
"""

import gc
import os
import signal
import warnings
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import RLock, Thread, current_thread, main_thread
from typing import Any

import numpy as np

from robustnmf.utils.platforms import at_fork

# Bytes from which on the C library of Linux always asks the system for memory.
LARGEST_KEPT = 2**25


class _User:
    """A block of code that needs a setting.

    It waits on plain locks. Ctrl-C can strike inside the Python code of `threading.Event`, and would leave that locked.
    """

    def __init__(self, generation: object) -> None:
        self.generation = generation
        self.running = allocate_lock()
        """Held while the block runs."""
        self.may_begin = allocate_lock()
        """Released when the setting is changed."""
        self.may_return = allocate_lock()
        """Released when the setting is restored, or others still need it."""
        self.error: BaseException | None = None
        self.may_begin.acquire()
        self.may_return.acquire()


class SharedSetting:
    """A setting of the process that is changed while any thread needs it.

    A thread of its own, the keeper, changes and restores it. Ctrl-C raises KeyboardInterrupt between any two lines of
    the main thread, those that would restore the setting included; it never does so in another thread. The keeper
    waits for a lock that the block of code holds, and a `with` statement releases a lock whatever happens.

    Parameters
    ----------
    change : callable
        Returns a context manager that changes the setting when it is entered, and restores it when it is left.

    Examples
    --------
    >>> words = []
    >>> @contextmanager
    ... def change():
    ...     words.append("changed")
    ...     yield
    ...     words.append("restored")
    >>> setting = SharedSetting(change)
    >>> with setting.changed(), setting.changed():
    ...     words.append("fit")
    >>> words
    ['changed', 'fit', 'restored']
    """

    def __init__(self, change: Callable[[], AbstractContextManager[Any]]) -> None:
        self._change = change
        self._lock = allocate_lock()
        self._forget()
        at_fork(
            before=lambda: self._lock.acquire(),  # not the method: a forked process has a new lock
            after_in_parent=lambda: self._lock.release(),
            after_in_child=self._after_fork_in_child,
        )

    def _forget(self) -> None:
        self._generation = object()
        self._users: list[_User] = []
        self._context: AbstractContextManager[Any] | None = None
        """Entered, while the setting is changed."""

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Change the setting for a block of code."""
        user, has_begun = _User(self._generation), False
        try:
            with user.running:
                self._begin(user)
                has_begun = True
                yield
        except Exception:
            if has_begun:
                self._end(user)
            raise
        self._end(user)  # not after Ctrl-C: it may have come before the keeper knew of this user

    def _begin(self, user: _User) -> None:
        with self._lock:
            is_changed = self._context is not None
            if not is_changed:
                # Before the user is known: it fails where there is no memory for a thread.
                Thread(target=self._keep, name="robustnmf-keeper", daemon=True).start()
            self._users.append(user)
        if is_changed:
            return
        user.may_begin.acquire()
        if user.error is not None:
            raise user.error

    def _end(self, user: _User) -> None:
        """Wait until the setting is restored, unless others still need it."""
        with self._lock:
            if user.generation is not self._generation:  # a forked process, which has no keeper
                return
            if any(other is not user for other in self._users):
                self._users = [other for other in self._users if other is not user]
                return
        user.may_return.acquire()

    def _keep(self) -> None:
        """Change the setting, and restore it when it is no longer needed."""
        if not self._begin_to_keep():
            return
        done: list[_User] = []
        while user := self._next_user(done):
            user.running.acquire()
            with self._lock:
                self._users = [other for other in self._users if other is not user]
            done.append(user)

    def _begin_to_keep(self) -> bool:
        """Change the setting, unless another keeper has done so or everybody is done."""
        with self._lock:
            if self._context is not None or not self._users:
                return False
            error = None
            try:
                context = self._change()
                context.__enter__()
                self._context = context
            except Exception as reason:
                error = reason
            for user in self._users:
                user.error = error
                user.may_begin.release()
            if error is not None:
                self._users = []
            return error is None

    def _next_user(self, done: list[_User]) -> _User | None:
        """Return a user that may still need the setting; if there is none, restore it."""
        with self._lock:
            try:
                if not self._users:
                    self._leave_context()
            finally:
                while done:
                    done.pop().may_return.release()
            return self._users[0] if self._users else None

    def _after_fork_in_child(self) -> None:
        self._lock = allocate_lock()
        self._leave_context()
        self._forget()

    def _leave_context(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)


# --- BLAS -------------------------------------------------------------------------------------------------------------

_controllers: list[Any] = []


def _blas_libraries() -> list[Any]:
    """Return the BLAS libraries of the process, as threadpoolctl knows them."""
    if not _controllers:
        from threadpoolctl import ThreadpoolController

        _controllers.append(ThreadpoolController())
    return [library for library in _controllers[0].lib_controllers if library.user_api == "blas"]


def _is_per_thread(library: Any) -> bool:
    """Return whether a limit holds for the thread that sets it, as with OpenMP, and not for the process."""
    return getattr(library, "threading_layer", None) == "openmp"


def _set_threads(library: Any, n_threads: int) -> None:
    """Set the number of threads of a library.

    Since version 3.8, threadpoolctl silently ignores all threads but the first to set a limit of OpenBLAS.
    """
    release = getattr(library, "clear_controlling_thread", lambda *, force: None)
    release(force=True)
    library.set_num_threads(n_threads)
    release(force=True)


@contextmanager
def _limited_blas() -> Iterator[None]:
    """Limit the libraries that have one number of threads for the whole process."""
    before = [(library, library.num_threads) for library in _blas_libraries() if not _is_per_thread(library)]
    for library, _ in before:
        _set_threads(library, 1)
    yield
    for library, n_threads in before:
        if library.num_threads == 1:  # else other code has changed it since
            _set_threads(library, n_threads)


_process_blas = SharedSetting(_limited_blas)


def blas_threads() -> int | None:
    """Return the number of threads of BLAS; of several libraries the most, None if there is none."""
    return max((library.num_threads for library in _blas_libraries()), default=None)


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Limit BLAS to one thread."""
    with _process_blas.changed():
        restore = limit_blas_of_thread()
        try:
            yield
        finally:
            restore()


def limit_blas_of_thread() -> Callable[[], object]:
    """Limit, for this thread, the libraries that have a number for each; return what restores it."""
    before = [(library, library.num_threads) for library in _blas_libraries() if _is_per_thread(library)]
    for library, _ in before:
        library.set_num_threads(1)
    return lambda: [library.set_num_threads(n_threads) for library, n_threads in before]


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def unwatched_arithmetic() -> AbstractContextManager[Any]:
    """Let NumPy not warn of overflow and the like, in this thread: a fit looks at its results instead."""
    return np.errstate(all="ignore")


# --- Warnings ---------------------------------------------------------------------------------------------------------

# One for all filters: contexts that end in another order than they began would restore each other's.
_filters = SharedSetting(warnings.catch_warnings)


def keep_freed_memory() -> None:
    """Let the C library keep memory of arrays that are freed, for the next ones.

    That of Linux gives it back to the system at once, array by array, until it has seen a larger one being freed: in a
    new process a sum of two arrays of a megabyte takes ten times as long as its arithmetic. An array that nobody writes
    to costs nothing. This is not undone: the process may keep 64 MB that it does not use.
    """
    np.empty(LARGEST_KEPT - 2**13, dtype=np.uint8)


@contextmanager
def ignored_warnings(*filters: tuple[type[Warning], str]) -> Iterator[None]:
    """Ignore warnings of some categories whose message matches an expression.

    Filters of warnings are those of the whole process: others do not see such warnings meanwhile, either.
    """
    with _filters.changed():
        for category, message in filters:
            warnings.filterwarnings("ignore", message=message, category=category)
        yield


# --- Garbage ----------------------------------------------------------------------------------------------------------


@contextmanager
def _without_collector() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    gc.disable()
    yield
    gc.enable()


_collector = SharedSetting(_without_collector)


def uncollected_garbage() -> AbstractContextManager[None]:
    """Let nobody look for garbage meanwhile, that is for objects that only refer to each other."""
    return _collector.changed()


# --- Signals and forks ------------------------------------------------------------------------------------------------


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait until the end of a block of code that must not be left halfway."""
    handler = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(handler):
        yield
        return
    received: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


def hold_while_forking(lock: Any) -> None:
    """Fork only while no other thread holds a lock: the new process could not release it."""
    at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


no_fork = RLock()
"""Held during late imports, for modules have locks as well."""
hold_while_forking(no_fork)


def set_environment(variables: dict[str, str]) -> None:
    """Set variables of the environment of a process that was started to do tasks, for good."""
    os.environ.update(variables)
