"""How memory is measured, on a process whose memory is known."""

import sys

import numpy as np
import pytest

from liesparse.data import open_shards
from liesparse.reproduce.scale import streaming

CODE = """
import json, os, time
own = b"x" * (60 << 20)
pid = os.fork()
if pid == 0:
    mine = b"y" * (40 << 20)
    time.sleep(1.0)
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps({"said": 1}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's accounts are Linux's")
def test_the_peak_counts_children_and_shared_pages_once():
    peak = streaming.watch([sys.executable, "-c", CODE])
    assert peak.printed == {"said": 1}
    assert 100 < peak.own <= peak.total < 130
    with pytest.raises(RuntimeError, match="ended with 3"):
        streaming.watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_shards_to_measure_with_are_digits_that_move(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "SHARD", 300)
    streaming.make_shards(tmp_path, 700)
    shards = open_shards(tmp_path)
    assert [file.n_images for file in shards.files] == [300, 300, 100]
    assert shards.image_shape == (28, 28)
    rows = shards.rows(np.arange(700))
    assert len(np.unique(rows.numpy(), axis=0)) == 700
    assert float(rows.mean(dim=0).std()) < float(rows.std(dim=1).mean())  # no place is always bright
