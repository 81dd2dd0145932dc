"""Out of memory: the one module that knows every form it takes, as an error, as a text and as a dead process.

What names memory by itself is certain. What large batches also die of, and broken installations
just the same, is suspect: it counts only if a smaller batch passes in a fresh process.
"""

from __future__ import annotations

import errno
import math
import re
import signal
from collections.abc import Iterator

# Regular expressions; each names memory by itself, in TensorFlow, XLA, CUDA and its libraries,
# NumPy, Python or the system.
CERTAIN = (
    r"OOM when allocating",
    r"[Rr]an out of (GPU )?memory (when|trying)",
    r"Out of memory (while trying to allocate|allocating)",
    r"(?i:failed to allocate (the )?(memory\b(?! to serialize)|host memory|requested memory|request for|scratch|\d))",
    r"Dst tensor is not initialized",
    r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory",
    r"CU(DNN|BLAS|SOLVER|SPARSE|RAND)_STATUS_(\w+_)?ALLOC(ATION)?_FAILED|CUFFT_ALLOC_FAILED",
    r"std::bad_alloc",
    r"(^|[\s.])(_Array)?MemoryError(:|$)",
    r"Unable to allocate [\d.]+ \w+ for an array",
    r"Cannot allocate memory",
)
SUSPECT = (
    r"No algorithm worked",
    r"Failed to determine best cudnn convolution algorithm",
    r"Failed to get convolution algorithm",
    r"CUDNN_STATUS_(INTERNAL_ERROR|EXECUTION_FAILED|NOT_INITIALIZED|MAPPING_ERROR)",
    r"CUBLAS_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)",
    # also what a driver that does not fit says
    r"failed to create cublas handle|[Cc]ould not create cudnn handle",
    r"Blas \w+ launch failed|cu[Dd][Nn][Nn] launch failure",
    r"without (BLAS|DNN) support|(No|get) B[Ll][Aa][Ss] support|initialize BLAS support",
    r"No valid config found|Autotuning failed",
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED)",
    r"Failed to instantiate CUDA graph|Failed to load in-memory CUBIN",
    r"Shared memory size limit exceeded",
    # oneDNN's number for it, but another one's in its first versions
    r"received an exception:\s*Status: 1,",
    # a pool of processes that lost one
    r"\bSIG(ABRT|SEGV|KILL|BUS|ILL)\(-\d+\)|terminated abruptly",
)
HARMLESS = "is not a failure"  # cuDNN says so when an optional workspace did not fit

# The code says that something ran out. It says so of a full disk too, since TensorFlow maps the
# system's ENOSPC, EDQUOT and EMFILE to it.
CODE = r"ResourceExhaustedError|RESOURCE_EXHAUSTED|Resource exhausted:"
NOT_MEMORY = r"No space left on device|(?i:disk quota exceeded)|Too many open files|to serialize message|message larger than max|Shared memory size limit"

# What the graph optimizer could not fold: it writes a constant of one repeated value, and the
# kernel finds no room for all of them.
FOLDED, FEW = "Cannot parse tensor from proto", 1 << 18
_SIZE = re.compile(r"\bsize: (\d+)")

_CERTAIN, _SUSPECT = (re.compile("|".join(phrases), re.MULTILINE) for phrases in (CERTAIN, SUSPECT))
_SIGNALS = frozenset(
    int(getattr(signal, name))
    for name in ("SIGABRT", "SIGSEGV", "SIGKILL", "SIGBUS", "SIGILL")
    if hasattr(signal, name)
)  # Windows lacks some


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error certainly means that memory ran out.

    Args:
        error: Any exception. What caused it is looked at too, and what was being handled when it
            came, unless `from None` hides that.

    Example:
    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("shape"))
    (True, False)
    """
    return any(_is_certain(link) for link in _chain(error))


def is_suspect(error: BaseException) -> bool:
    """Whether an error may mean that memory ran out: it does if a smaller batch passes in a fresh process.

    Args:
        error: Any exception; its causes are looked at as `is_out_of_memory` does. One that is
            certain is not suspect.

    Example:
    >>> is_suspect(RuntimeError("No algorithm worked!")), is_suspect(MemoryError())
    (True, False)
    """
    return not is_out_of_memory(error) and any(
        _SUSPECT.search(_text(link)) for link in _chain(error)
    )


def is_suspect_exit(exit_code: int) -> bool:
    """Whether a process that ended so may have run out of memory: aborted, segmentation fault, killed, bus error or illegal instruction.

    Args:
        exit_code: As `subprocess` gives it (-11) or as a shell does (139).

    Example:
    >>> is_suspect_exit(-11), is_suspect_exit(139), is_suspect_exit(1)
    (True, True, False)
    """
    return (-exit_code if exit_code < 0 else exit_code - 128) in _SIGNALS


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()  # contexts can be tied into a ring by hand
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = (
            link.__context__
            if link.__cause__ is None and not link.__suppress_context__
            else link.__cause__
        )


def _is_certain(link: BaseException) -> bool:
    if isinstance(link, MemoryError) or (isinstance(link, OSError) and link.errno == errno.ENOMEM):
        return True
    text = _text(link)
    return bool(
        _CERTAIN.search(text) or (re.search(CODE, text) and not re.search(NOT_MEMORY, text))
    ) or _is_folded(text)


def _is_folded(text: str) -> bool:
    """Whether a constant of many values could not be made; one of a few is a broken file."""
    _, found, proto = text.partition(FOLDED)
    return bool(found) and math.prod(int(size) for size in _SIZE.findall(proto)) >= FEW


def _text(link: BaseException) -> str:
    # Line by line: TensorFlow joins "Graph execution error", a traceback, warnings and the cause in
    # one message.
    return "\n".join(
        line for line in (type(link).__name__, *str(link).splitlines()) if HARMLESS not in line
    )
