"""Out of memory: the errors, texts and exit codes by which it shows.

An error that names memory is certain. Other errors come of large batches as well as of broken
installations: they are suspect, and count only if a smaller batch passes in a fresh process.
"""

from __future__ import annotations

import errno
import math
import re
import signal
from collections.abc import Iterator

# Regular expressions of texts that name memory: of TensorFlow, XLA, CUDA and its libraries, NumPy,
# Python and the system.
CERTAIN = (
    r"OOM when allocating",
    r"[Rr]an out of (GPU )?memory (when|trying)",
    r"Out of memory (while trying to allocate|allocating)",
    r"(?i:failed to allocate (the )?"
    r"(memory\b(?! to serialize)|host memory|requested memory|request for|\d"
    r"|scratch(?! buffer for device)))",  # of another job's device, which no batch size helps
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
    r"CUDNN_STATUS_(INTERNAL_ERROR|EXECUTION_FAILED|NOT_INITIALIZED|MAPPING_ERROR|NOT_SUPPORTED"
    r"|BAD_PARAM)",
    r"CUBLAS_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED|NOT_SUPPORTED|INVALID_VALUE)",
    # a driver of another version causes this too
    r"failed to create cublas handle|[Cc]ould not create cudnn handle",
    r"Blas \w+ launch failed|cu[Dd][Nn][Nn] launch failure",
    r"without (BLAS|DNN) support|(No|get) B[Ll][Aa][Ss] support|initialize BLAS support",
    r"No valid config found|Autotuning failed",
    r"CUDA_ERROR_(ILLEGAL_ADDRESS|LAUNCH_FAILED|INVALID_VALUE|MISALIGNED_ADDRESS|LAUNCH_TIMEOUT)",
    # kernels that count elements by 32 bits
    r"int32 max|too many elements|work_element_count",
    r"DNN library (is not found|initialization failed)",
    r"Failed to instantiate CUDA graph|Failed to load in-memory CUBIN",
    r"Shared memory size limit exceeded",
    # oneDNN's out of memory; its first versions used the number for another error
    r"received an exception:\s*Status: 1,",
    # a pool of processes has lost a worker
    r"\bSIG(ABRT|SEGV|KILL|BUS|ILL)\(-\d+\)|terminated abruptly",
)
PROGRAM, FULL = "Failed to load in-memory CUBIN", re.compile(r"(?i)out.of.memory")
HARMLESS = "is not a failure"  # in TensorFlow's note on an optional workspace that did not fit

# TensorFlow's code for a resource that ran out. A full disk has it too: `ErrnoToCode` in
# tsl/platform/errors.cc (TensorFlow 2.21.0) maps the system's ENOSPC, EDQUOT and EMFILE to it.
CODE = r"ResourceExhaustedError|RESOURCE_EXHAUSTED|Resource exhausted:"
NOT_MEMORY = (
    r"No space left on device|(?i:disk quota exceeded)|Too many open files"
    r"|to serialize message|message larger than max|Shared memory size limit"
)

# The graph optimizer folds an operation into a constant of one repeated value, and the kernel finds
# no room for all elements. With fewer elements than this the file is broken; chosen by hand.
FOLDED, FEW = "Cannot parse tensor from proto", 1 << 18
_SIZE = re.compile(r"\bsize: (\d+)")

_CERTAIN, _SUSPECT = (re.compile("|".join(phrases), re.MULTILINE) for phrases in (CERTAIN, SUSPECT))
_SIGNALS = frozenset(
    int(getattr(signal, name))
    for name in ("SIGABRT", "SIGSEGV", "SIGKILL", "SIGBUS", "SIGILL")
    if hasattr(signal, name)
)  # Windows lacks some


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error certainly means out of memory.

    Example:
    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("shape"))
    (True, False)
    """
    return any(_is_certain(link) for link in _chain(error))


def is_suspect(error: BaseException) -> bool:
    """Tell whether an error may mean out of memory: if a smaller batch passes in a fresh process.

    Example:
    >>> is_suspect(RuntimeError("No algorithm worked!")), is_suspect(MemoryError())
    (True, False)
    """
    return not is_out_of_memory(error) and any(
        _SUSPECT.search(_text(link)) for link in _chain(error)
    )


def is_full_of_programs(error: BaseException) -> bool:
    """Tell whether a GPU has no room for one more program that XLA compiled.

    TensorFlow keeps each one until the process ends (github.com/tensorflow/tensorflow/issues/64170,
    seen with 2.21.0): a long search fills the GPU, whatever the recipe.

    Example:
    >>> is_full_of_programs(RuntimeError("Failed to load in-memory CUBIN: out of memory"))
    True
    """
    texts = [_text(link) for link in _chain(error)]
    return any(PROGRAM in text and FULL.search(text) for text in texts)


def is_suspect_exit(exit_code: int) -> bool:
    """Tell whether a process with this exit code may have run out of memory.

    That is so after an abort, a segmentation fault, a kill, a bus error or an illegal instruction.

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
        hidden = link.__cause__ is not None or link.__suppress_context__
        link = link.__cause__ if hidden else link.__context__


def _is_certain(link: BaseException) -> bool:
    if isinstance(link, MemoryError) or (isinstance(link, OSError) and link.errno == errno.ENOMEM):
        return True
    text = _text(link)
    if _CERTAIN.search(text) or _is_folded(text):
        return True
    return bool(re.search(CODE, text)) and not re.search(NOT_MEMORY, text)


def _is_folded(text: str) -> bool:
    """Tell whether a constant of many elements could not be made; a few mean a broken file."""
    _, found, proto = text.partition(FOLDED)
    return bool(found) and math.prod(int(size) for size in _SIZE.findall(proto)) >= FEW


def _text(link: BaseException) -> str:
    # TensorFlow joins "Graph execution error", a traceback, warnings and the cause in one message,
    # so harmless lines are taken out one by one
    lines = (type(link).__name__, *str(link).splitlines())
    return "\n".join(line for line in lines if HARMLESS not in line)
