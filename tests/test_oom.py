import pytest
import tensorflow as tf

from kbatch.device import leak, meter
from kbatch.device.oom import CERTAIN, is_out_of_memory


@pytest.mark.parametrize("phrase", CERTAIN)
def test_every_certain_phrase_means_out_of_memory(phrase):
    assert is_out_of_memory(RuntimeError(f"Graph execution error:\n\nDetected at node x\n{phrase} with shape[1,2]"))


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (MemoryError(), True),
        (tf.errors.ResourceExhaustedError(None, None, "whatever"), True),
        (RuntimeError("ran out of memory trying to allocate 2GiB. This is not a failure, but may mean slower"), False),
        (ValueError("shapes do not match"), False),
        (tf.errors.InvalidArgumentError(None, None, "bad"), False),
    ],
)
def test_single_errors(error, means):
    assert is_out_of_memory(error) is means


def test_the_cause_counts():
    try:
        try:
            raise MemoryError
        except MemoryError as cause:
            raise RuntimeError("fit failed") from cause
    except RuntimeError as error:
        assert is_out_of_memory(error)


def test_the_meter_sees_an_allocation():
    if meter.bytes_now() is None:
        pytest.skip("this device cannot tell its bytes")
    meter.reset_peak()
    before = meter.bytes_now()
    tensor = tf.zeros((1024, 1024))
    assert meter.bytes_now() - before >= 4 << 20
    del tensor
    assert meter.bytes_peak() - before >= 4 << 20


def test_the_private_registry_that_leaks_is_still_there_and_purging_it_works():
    before = leak.registered()

    @tf.custom_gradient
    def doubled(x):
        return 2 * x, lambda upstream: 2 * upstream

    traced = tf.function(lambda x: doubled(x)).get_concrete_function(tf.TensorSpec(()))
    assert leak.registered() > before
    assert leak.purge(before) >= 1
    assert leak.registered() == before
    assert float(traced(tf.constant(3.0))) == 6.0
