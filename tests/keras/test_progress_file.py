"""The progress of a training, in a file that another process reads."""

import pickle

from kbatch.training._isolated_worker import ProgressFile


def test_another_process_reads_what_was_written_last(tmp_path):
    own = ProgressFile(tmp_path / "progress")
    assert own.write(0.0, None) == 1
    assert own.read() == (1, 0.0, None)
    other = pickle.loads(pickle.dumps(own))
    other.write(1.5, None)
    assert own.read() == (2, 1.5, None)
    other.write(2.5, 0.75)
    assert own.read() == (3, 2.5, 0.75)
