"""Out of memory: the one module that knows which errors mean it."""

from __future__ import annotations

# Each of these names memory by itself, in TensorFlow, XLA, cuDNN, cuBLAS, NumPy or Python.
CERTAIN = (
    "ResourceExhaustedError",
    "RESOURCE_EXHAUSTED",
    "OOM when allocating tensor",
    "ran out of memory trying to allocate",
    "Out of memory while trying to allocate",
    "failed to allocate memory",
    "Failed to allocate scratch",
    "Dst tensor is not initialized",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "failed to create cublas handle",
    "Could not create cudnn handle",
    "std::bad_alloc",
    "Unable to allocate",
)
HARMLESS = "is not a failure"  # cuDNN says so when an optional workspace did not fit


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out.

    Args:
        error: Any exception; its causes are looked at too.

    Example:
    >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("shape"))
    (True, False)
    """
    seen: BaseException | None = error
    while seen is not None:
        text = f"{type(seen).__name__}: {seen}"
        if isinstance(seen, MemoryError) or (HARMLESS not in text and any(phrase in text for phrase in CERTAIN)):
            return True
        seen = seen.__cause__
    return False
