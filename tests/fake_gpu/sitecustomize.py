"""A fake GPU: TensorFlow says that it has one, whose memory is the CPU's allocator with a limit.

Every line of kbatch that asks for a GPU then runs on a CPU. Put this folder on `PYTHONPATH` and set
`FAKE_GPU=1`: Python imports `sitecustomize` in each new process, the workers included. A process
that has imported TensorFlow, and not used it, calls `pretend`.

    FAKE_GPU       1 for the fake
    FAKE_GPU_MB    its memory in MiB; 400 if unset
    FAKE_GPUS      how many there are; 1 if unset
    FAKE_GPU_LOG   a file to which the visible GPUs are written, a line each time they are set

What it cannot show: copies between host and device, kernels of cuDNN, XLA's autotuning on a GPU,
and two memories.
"""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path

BFC, LIMIT = "TF_CPU_ALLOCATOR_USE_BFC", "TF_CPU_BFC_MEM_LIMIT_IN_MB"


class FakeGpus:
    """What TensorFlow's functions answer, where they would ask the driver."""

    def __init__(self, tf):
        from tensorflow.python.eager import context

        self._tf, self._context = tf, context
        self._real = {
            name: getattr(tf.config, name)
            for name in (
                "list_physical_devices",
                "list_logical_devices",
                "set_logical_device_configuration",
                "set_visible_devices",
                "get_visible_devices",
            )
        }
        numbers = range(int(os.environ.get("FAKE_GPUS", "1")))
        self._cards = [
            context.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in numbers
        ]
        self._visible = list(self._cards)

    def list_physical_devices(self, device_type=None):
        others = self._real["list_physical_devices"](device_type)
        return [*([] if device_type == "GPU" else others), *self._listed(device_type, self._cards)]

    def list_logical_devices(self, device_type=None):
        if not self._has_begun() and LIMIT not in os.environ:
            self._keep_to(os.environ.get("FAKE_GPU_MB", "400"))
        others = self._real["list_logical_devices"](device_type)  # begins TensorFlow
        logical = [
            self._context.LogicalDevice(f"/device:GPU:{number}", "GPU")
            for number in range(len(self._visible))
        ]
        return [*([] if device_type == "GPU" else others), *self._listed(device_type, logical)]

    def set_logical_device_configuration(self, device, logical_devices):
        if device in self._cards:
            self._keep_to(int(logical_devices[0].memory_limit))
        else:
            self._real["set_logical_device_configuration"](device, logical_devices)

    def set_visible_devices(self, devices, device_type=None):
        if device_type != "GPU":
            self._real["set_visible_devices"](devices, device_type)
            return
        self._visible = list(devices)
        if "FAKE_GPU_LOG" in os.environ:
            with Path(os.environ["FAKE_GPU_LOG"]).open("a") as log:
                log.write(f"{len(self._visible)} of {len(self._cards)} visible\n")

    def get_visible_devices(self, device_type=None):
        others = self._real["get_visible_devices"](device_type)
        gpus = self._listed(device_type, self._visible)
        return [*([] if device_type == "GPU" else others), *gpus]

    def details(self, device):
        return {"device_name": "FAKE GPU"}

    def local_devices(self, *_):
        self.list_logical_devices()
        return [_Device("CPU", 1), _Device("GPU", int(os.environ[LIMIT]) << 20)]

    def _listed(self, device_type, gpus):
        return gpus if device_type in (None, "GPU") else []

    def _has_begun(self):
        return self._context.context()._context_handle is not None

    def _keep_to(self, mebibytes):
        if self._has_begun():
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        os.environ[BFC], os.environ[LIMIT] = "true", str(mebibytes)


class _Device:
    """A line of `device_lib.list_local_devices`."""

    def __init__(self, device_type, memory_limit):
        self.device_type, self.memory_limit = device_type, memory_limit


def pretend(tf):
    """Let an imported TensorFlow say that it has a GPU."""
    from tensorflow.python.client import device_lib

    fake, own = FakeGpus(tf), tf.config.experimental
    told, reset = own.get_memory_info, own.reset_memory_stats
    for module in (tf.config, sys.modules["tensorflow._api.v2.config"]):
        for name in fake._real:
            setattr(module, name, getattr(fake, name))
    own.get_memory_info = lambda device: told(device.replace("GPU", "CPU"))
    own.reset_memory_stats = lambda device: reset(device.replace("GPU", "CPU"))
    own.get_device_details = fake.details
    device_lib.list_local_devices = fake.local_devices


class _Importer(importlib.abc.MetaPathFinder):
    """Calls `pretend` as soon as TensorFlow is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("tensorflow")
        load = spec.loader.exec_module

        def load_and_pretend(module):
            load(module)
            pretend(module)

        spec.loader.exec_module = load_and_pretend
        return spec


if os.environ.get("FAKE_GPU"):
    sys.meta_path.insert(0, _Importer())
