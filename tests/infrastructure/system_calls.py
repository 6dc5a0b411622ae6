"""The system calls with which a process changes files or talks to a server: recorded, or used to kill it before one.

A process traces a forked child with ptrace(2), which needs no rights and no other program.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import platform
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long

TRACEME, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
OPTIONS = 0x1 | 0x8 | 0x100000  # TRACESYSGOOD, TRACECLONE, EXITKILL
WALL = 0x40000000
SYSCALL_STOP = signal.SIGTRAP | 0x80
ENTRY, EXIT = 1, 2

NUMBERS = {
    "x86_64": {
        1: "write",
        18: "pwrite64",
        44: "sendto",
        74: "fsync",
        75: "fdatasync",
        77: "ftruncate",
        87: "unlink",
        263: "unlinkat",
    },
    "aarch64": {
        64: "write",
        68: "pwrite64",
        206: "sendto",
        82: "fsync",
        83: "fdatasync",
        46: "ftruncate",
        35: "unlinkat",
    },
}[platform.machine()]
"""The calls that change files or send to a server, for each processor."""


SOCKETS = Path("socket:")
"""Stands for a folder: the paths of all sockets begin with it."""


class Change(NamedTuple):
    """A call: ``write`` (offset and data), ``sync``, ``truncate`` (to the offset), ``remove`` or ``send``."""

    kind: str
    path: str
    offset: int = 0
    data: bytes = b""


class _Info(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64),
        ("stack", ctypes.c_uint64),
        ("values", ctypes.c_uint64 * 8),
    )


def changes(work: Callable[[], object], folder: Path) -> list[Change]:
    """The calls with which ``work``, in a child, changes files in a folder."""
    return _traced(work, folder, None)[1]


def killed_before(work: Callable[[], object], folder: Path, number: int) -> bool:
    """Kill the child that does ``work`` before its call with this number, from 0; False if it made fewer calls.

    Only calls on the files of a folder are counted; with SOCKETS, only calls that send.
    """
    return _traced(work, folder, number)[0] == -signal.SIGKILL


def _traced(work: Callable[[], object], folder: Path, number: int | None) -> tuple[int, list[Change]]:
    """The exit code of a child, and its calls. A process of its own traces it: it waits for all of its children."""
    reading, writing = os.pipe()
    tracer = os.fork()
    if not tracer:
        try:
            with open(writing, "wb") as pipe:  # noqa: PTH123 - a descriptor
                pickle.dump(_trace(work, str(folder), number), pipe)
        except BaseException:  # noqa: BLE001 - the child must never continue as a second pytest
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
        result: tuple[int, list[Change]] = pickle.loads(pipe.read())  # noqa: S301 - of the child
    os.waitpid(tracer, 0)
    assert result[0] in {0, -signal.SIGKILL}
    return result


def _trace(work: Callable[[], object], folder: str, number: int | None) -> tuple[int, list[Change]]:
    child = _stopped_child(work)
    _libc.ptrace(SETOPTIONS, child, None, OPTIONS)
    _libc.ptrace(SYSCALL, child, None, None)
    calls: list[Change] = []
    begun: dict[int, Change] = {}
    while True:
        thread, status = os.waitpid(-1, WALL)
        if not os.WIFSTOPPED(status):
            if thread == child:
                return os.waitstatus_to_exitcode(status), calls
            continue
        stop = os.WSTOPSIG(status)
        if stop == SYSCALL_STOP:
            info = _Info()
            _libc.ptrace(GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.addressof(info))
            if info.op == ENTRY and (call := _change(thread, list(info.values))) and call.path.startswith(folder):
                if number == len(calls):
                    os.kill(child, signal.SIGKILL)
                begun[thread] = call
            elif info.op == EXIT and thread in begun:
                call = begun.pop(thread)
                if info.values[0] < 2**63:  # it succeeded
                    calls.append(call._replace(data=call.data[: info.values[0]] if call.kind == "write" else b""))
        passed_on = 0 if stop in {SYSCALL_STOP, signal.SIGTRAP, signal.SIGSTOP} else stop
        _libc.ptrace(SYSCALL, thread, None, passed_on)


def _stopped_child(work: Callable[[], object]) -> int:
    """A child that this process traces, and that is stopped before its work."""
    child = os.fork()
    if not child:
        status = 1
        try:
            _libc.ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - as above
            traceback.print_exc()
        finally:
            os._exit(status)
    os.waitpid(child, 0)
    return child


def _change(thread: int, values: list[int]) -> Change | None:
    name, first, second, third, fourth = NUMBERS.get(values[0]), *values[1:5]
    if name is None:
        return None
    if name in {"unlink", "unlinkat"}:
        at = first if name == "unlink" else second
        return Change("remove", os.fsdecode(_memory(thread, at, 4096).split(b"\0")[0]))
    path = str(Path(f"/proc/{thread}/fd/{first}").readlink())
    if name == "sendto":
        return Change("send", path)
    if name in {"write", "pwrite64"}:
        return Change("write", path, fourth if name == "pwrite64" else 0, _memory(thread, second, third))
    return Change("truncate", path, second) if name == "ftruncate" else Change("sync", path)


def _memory(thread: int, address: int, size: int) -> bytes:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - without a buffer
        memory.seek(address)
        return memory.read(size) or b""
