"""Out of memory in every form that is known, and what must not be taken for it."""

import errno
import signal

import pytest
import tensorflow as tf

from kbatch.runtime import device_memory, tensorflow_private
from kbatch.runtime.oom import is_out_of_memory, is_suspect, is_suspect_exit

GRAPH = (
    "Graph execution error:\n\nDetected at node {node} defined at (most "
    'recent call last):\n  File "/home/a/train.py", line 7, in <module>\n\n'
)
HINT = (
    "\nHint: If you want to see a list of allocated tensors when OOM happens, "
    "add report_tensor_allocations_upon_oom to RunOptions for current "
    "allocation info. This isn't available when running in Eager mode.\n"
    " [Op:__inference_multi_step_on_iterator_450]"
)
WORKSPACE = (
    "2026-11-21 05:33:01: W external/local_xla/xla/tsl/framework/bfc_allocator.cc:310] "
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate "
    "2.32GiB with freed_by_count=0. The caller indicates that this is not a "
    "failure, but this may mean that there could be performance gains if more "
    "memory were available."
)
LOKY = (
    "A worker process managed by the executor was unexpectedly terminated. "
    "This could be caused by a segmentation fault while calling the function "
    "or by an excessive memory usage causing the Operating System to kill the "
    "worker.\n\nThe exit codes of the workers are {codes}\nDetailed "
    "tracebacks of the workers should have been printed to stderr in the "
    "executor process if faulthandler was not disabled."
)

FOLDED = (
    "Cannot parse tensor from proto: goo.gle/debugonly  \ndtype: DT_FLOAT\n"
    "tensor_shape {{\n  dim {{\n    size: {first}\n  }}\n  dim {{\n"
    "    size: {second}\n  }}\n}}\nfloat_val: 2\n"
)


def graph(node, text):
    return GRAPH.format(node=node) + text + f"\n\t [[{{{{node {node}}}}}]]" + HINT


def resource_exhausted(text):
    return tf.errors.ResourceExhaustedError(None, None, text)


def internal(text):
    return tf.errors.InternalError(None, None, text)


CERTAIN = {
    "memory error": MemoryError(),
    "enomem": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "numpy": MemoryError(
        "Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"
    ),
    "numpy in tf.data": tf.errors.UnknownError(
        None,
        None,
        "MemoryError: Unable to allocate 7.45 GiB for an array with shape (9, 9)\nTraceback …",
    ),
    "numpy, told again": RuntimeError(
        "cannot load: Unable to allocate 7.45 GiB for an array with shape "
        "(1000000000,) and data type float64"
    ),
    "enomem, told again": RuntimeError("cannot start: [Errno 12] Cannot allocate memory"),
    "remote traceback": RuntimeError(
        '"""\nTraceback (most recent call last):\n  File "x.py", line 1, in f\nMemoryError\n"""'
    ),
    "code alone": resource_exhausted("whatever"),
    "bfc": resource_exhausted(
        graph(
            "conv2d",
            (
                "OOM when allocating tensor with shape[600,64,28,28] and type "
                "float on /job:localhost/replica:0/task:0/device:CPU:0 by "
                "allocator cpu"
            ),
        )
    ),
    "temporary": internal("OOM when allocating temporary tensor with shape[512,512]"),
    "allocator": internal(
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.45GiB "
        "(rounded to 3704619008) requested by op Conv2D"
    ),
    "xla": resource_exhausted(
        graph("StatefulPartitionedCall", "Out of memory while trying to allocate 369.01MiB.")
    ),
    "xla bytes": internal("Out of memory while trying to allocate 68719476736 bytes."),
    "xla code": RuntimeError(
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB "
        "(2147483648B) on device ordinal 0"
    ),
    "xla bfc": internal("Out of memory allocating 2147483648 bytes."),
    "command buffer": internal(
        "Underlying backend ran out of memory trying to instantiate command "
        "buffer with 3 (total of 9 alive graphs in the process)."
    ),
    "old code": RuntimeError("(0) Resource exhausted: SameWorkerRecvDone [[{{node a}}]]"),
    "eager": internal(
        "{{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:0}} "
        "failed to allocate memory [Op:AddV2]"
    ),
    "cudnn scratch": internal(
        graph(
            "conv2d",
            (
                "CUDNN failed to allocate the scratch space for the runner or to "
                "find a working no-scratch runner."
            ),
        )
    ),
    "async": internal(
        "gpu_async_0 cuMemAllocAsync failed to allocate 2147483648 bytes: CUDA error"
    ),
    "gpu memory": internal(
        "Ran out of GPU memory when allocating 2147483648 bytes for SparseMatMul"
    ),
    "copy": internal(
        "Failed copying input tensor from CPU:0 to GPU:0 in order to run "
        "_EagerConst: Dst tensor is not initialized."
    ),
    "driver": internal(
        "failed to allocate 10.91G (11715084288 bytes) from device: "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory"
    ),
    "cudnn": internal(graph("conv2d", "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED")),
    "cudnn 9": internal("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED in cudnnExecute"),
    "cublas": internal("failed to create cublas handle: CUBLAS_STATUS_ALLOC_FAILED"),
    "cusolver": internal("cuSolverDN call failed with status =CUSOLVER_STATUS_ALLOC_FAILED"),
    "cufft": internal("Failed to create cuFFT batched plan: CUFFT_ALLOC_FAILED"),
    "c++": RuntimeError(
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc"
    ),
    "folded": tf.errors.InvalidArgumentError(
        None, None, graph("Fill", FOLDED.format(first=9000, second=9000))
    ),
    "workspace, then certain": internal(f"{WORKSPACE}\nOOM when allocating tensor with shape[8,8]"),
    "certain, then workspace": internal(f"OOM when allocating tensor with shape[8,8]\n{WORKSPACE}"),
    "disk in another line": internal(
        "Shard 3: No space left on device\nCUDA_ERROR_OUT_OF_MEMORY: out of memory"
    ),
}
SUSPECT = {
    "algorithm": tf.errors.NotFoundError(
        None, None, graph("conv2d", "No algorithm worked!  Error messages:")
    ),
    "best algorithm": RuntimeError(
        "UNKNOWN: Failed to determine best cudnn convolution algorithm for:\n"
        "%cudnn-conv = (f32[16,64,32,32]) custom-call\n\n"
        "Original error: INTERNAL"
    ),
    "convolution": tf.errors.UnknownError(
        None,
        None,
        graph(
            "conv2d",
            (
                "Failed to get convolution algorithm. This is probably because "
                "cuDNN failed to initialize"
            ),
        ),
    ),
    "cudnn": internal(graph("conv2d", "cuDNN launch failure : input shape ([306,1,16,29])")),
    "cudnn internal": internal(
        "CUDNN_STATUS_INTERNAL_ERROR\nin "
        "external/local_xla/xla/stream_executor/cuda/cuda_dnn.cc(3470): "
        "'status'"
    ),
    "cudnn execution": internal("CUDNN_STATUS_EXECUTION_FAILED"),
    "cudnn handle": internal("Could not create cudnn handle: CUDNN_STATUS_NOT_INITIALIZED"),
    "cublas handle": internal("failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"),
    "cublas": internal("cublasCreate: CUBLAS_STATUS_NOT_INITIALIZED"),
    "handle alone": internal("Could not create cudnn handle: status 1"),
    "32 bits": tf.errors.InvalidArgumentError(
        None, None, graph("bias", "BiasGrad requires tensor size <= int32 max")
    ),
    "cudnn refuses": internal("CUDNN_STATUS_NOT_SUPPORTED in cudnnFinalize"),
    "cublas refuses": internal("cublasGemmEx: CUBLAS_STATUS_INVALID_VALUE"),
    "misaligned": internal("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address"),
    "cuda graph": internal("Failed to instantiate CUDA graph"),
    "gemm": internal(
        graph(
            "dense",
            (
                "Blas xGEMM launch failed : a.shape=[1,10000,784], "
                "b.shape=[1,784,500], m=10000, n=500, k=784"
            ),
        )
    ),
    "gemm batched": internal("Blas xGEMMBatched launch failed : a.shape=[8,64,64]"),
    "blas": internal(
        "Attempting to perform BLAS operation using StreamExecutor without BLAS support"
    ),
    "blas in stream": internal("No BLAS support in stream."),
    "autotuning": internal(
        "Autotuning failed for HLO: %fusion = f32[8] fusion(), kind=kInput "
        "with error: NOT_FOUND: No valid config found!"
    ),
    "illegal address": internal(
        "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    ),
    "launch": internal(
        "Failed to synchronize GPU for autotuning: CUDA_ERROR_LAUNCH_FAILED: "
        "unspecified launch failure"
    ),
    "shared memory": RuntimeError(
        "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 262144, available: 232448"
    ),
    "onednn": tf.errors.AbortedError(
        None,
        None,
        (
            "Operation received an exception:Status: 1, message: could not create "
            "a memory object, in file mkl_conv_ops.cc:1"
        ),
    ),
    "loky": RuntimeError(LOKY.format(codes="{SIGSEGV(-11)}")),
    "loky killed": RuntimeError(LOKY.format(codes="{EXIT(1), SIGKILL(-9)}")),
    "futures": RuntimeError(
        "A process in the process pool was terminated abruptly while the "
        "future was running or pending."
    ),
    "workspace, then suspect": tf.errors.NotFoundError(
        None, None, f"{WORKSPACE}\nNo algorithm worked!"
    ),
}
NEITHER = {
    "shapes": ValueError(
        "Arguments `target` and `output` must have the same shape. Received: "
        "target.shape=(32, 1), output.shape=(32, 10)"
    ),
    "argument": tf.errors.InvalidArgumentError(
        None, None, graph("dense", "Matrix size-incompatible: In[0]: [32,784], In[1]: [512,10]")
    ),
    "workspace only": internal(WORKSPACE),
    "a card that others fill": tf.errors.FailedPreconditionError(
        None, None, "Failed to allocate scratch buffer for device 1"
    ),
    "users memory": RuntimeError(
        "My replay memory is empty: allocate memory for 10 episodes first"
    ),
    "users budget": ValueError(
        "`memory_limit` must be below the device's memory; out of memory otherwise"
    ),
    "users advice": RuntimeError("Catch MemoryError yourself"),
    "users scheduler": RuntimeError("Unable to allocate a GPU for job 7"),
    "users layer": TypeError("MemoryLayer.call() got an unexpected keyword argument 'training'"),
    "keras hint": tf.errors.InvalidArgumentError(None, None, "bad" + HINT),
    "full disk": resource_exhausted(
        "{{function_node __wrapped__SaveV2}} checkpoint.tempstate84; No space "
        "left on device [Op:SaveV2]"
    ),
    "full disk, old": RuntimeError(
        "OP_REQUIRES failed at save_restore_v2_ops.cc:134 : Resource "
        "exhausted: ck.tempstate49; No space left on device"
    ),
    "quota": resource_exhausted(
        "/runs/trial_01/checkpoint_temp/part-00000; Disk quota exceeded [Op:SaveV2]"
    ),
    "files": resource_exhausted("/data/cat.7.jpg; Too many open files [Op:ReadFile]"),
    "proto": resource_exhausted(
        "Failed to allocate memory to serialize message of type "
        "'tensorflow.GraphDef' and size 6104292306"
    ),
    "onednn argument": tf.errors.AbortedError(
        None,
        None,
        (
            "Operation received an exception:Status: 3, message: could not "
            "initialize a memory descriptor, in file mkl_concat_op.cc:781"
        ),
    ),
    "broken constant": tf.errors.InvalidArgumentError(
        None, None, graph("Const", FOLDED.format(first=9, second=3))
    ),
    "disk": OSError(errno.ENOSPC, "No space left on device"),
    "loky, plain exit": RuntimeError(LOKY.format(codes="{EXIT(1)}")),
    "cancelled": KeyboardInterrupt(),
}


def verdict(error):
    assert not (is_out_of_memory(error) and is_suspect(error))
    return "certain" if is_out_of_memory(error) else "suspect" if is_suspect(error) else "neither"


ROWS = [
    (error, word, name)
    for rows, word in ((CERTAIN, "certain"), (SUSPECT, "suspect"), (NEITHER, "neither"))
    for name, error in rows.items()
]


@pytest.mark.parametrize(
    ("error", "expected"),
    [row[:2] for row in ROWS],
    ids=[f"{word}: {name}" for _, word, name in ROWS],
)
def test_what_an_error_means(error, expected):
    assert verdict(error) == expected


def chained(error, cause=None, context=None, hide=False):
    error.__cause__, error.__context__, error.__suppress_context__ = cause, context, hide
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (chained(RuntimeError("fit failed"), cause=MemoryError()), "certain"),
        (
            chained(
                RuntimeError("fit failed"),
                cause=chained(RuntimeError("step failed"), context=MemoryError()),
            ),
            "certain",
        ),
        (chained(TypeError("clean-up failed"), context=MemoryError()), "certain"),
        (chained(TypeError("wrong shape"), context=MemoryError(), hide=True), "neither"),
        (chained(RuntimeError("fit failed"), cause=SUSPECT["algorithm"]), "suspect"),
        (chained(RuntimeError("No algorithm worked!"), context=MemoryError()), "certain"),
    ],
)
def test_causes_and_contexts_count_unless_they_are_hidden(error, expected):
    assert verdict(error) == expected


def test_a_ring_of_contexts_ends():
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert verdict(one) == "neither"


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGKILL", "SIGBUS", "SIGILL"])
def test_a_process_ended_by_a_signal_is_known_by_both_codes(name):
    number = getattr(signal, name)
    assert is_suspect_exit(-number)
    assert is_suspect_exit(128 + number)


@pytest.mark.parametrize("exit_code", [0, 1, 2, 6, 9, 11, 128, 130, -2, 143, -15, 255])
def test_a_process_that_ended_otherwise_is_not(exit_code):
    assert not is_suspect_exit(exit_code)


def test_the_meter_sees_an_allocation():
    if device_memory.bytes_now() is None:
        pytest.skip("this device cannot tell its bytes")
    device_memory.reset_peak()
    before = device_memory.bytes_now()
    tensor = tf.zeros((1024, 1024))
    assert device_memory.bytes_now() - before >= 4 << 20
    del tensor
    assert device_memory.bytes_peak() - before >= 4 << 20


def test_the_leaking_registry_exists_and_can_be_purged():
    before = tensorflow_private.registered_gradients()

    @tf.custom_gradient
    def doubled(x):
        return 2 * x, lambda upstream: 2 * upstream

    traced = tf.function(lambda x: doubled(x)).get_concrete_function(tf.TensorSpec(()))
    assert tensorflow_private.registered_gradients() > before
    assert tensorflow_private.purge_gradients(before) >= 1
    assert tensorflow_private.registered_gradients() == before
    assert float(traced(tf.constant(3.0))) == 6.0
