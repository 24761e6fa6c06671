"""Train with kills, full disks, changed files and resumes, and compare with undisturbed runs: ``make soak``.

Each survivor is one run of tests/e2e/victim.py that was disturbed at random, killed at least once, and resumed until
it ended. Its model must be byte-identical to that of a run which nobody disturbed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from liesparse.checkpoint import list_checkpoints
from stopwatch import Stopwatch

VICTIM = Path(__file__).parent / "e2e" / "victim.py"
CONFIGURATIONS = (
    {},
    {"method": "gradient", "posterior": "grid", "n_grid": 16, "n_epochs": 8, "lattice": "paper"},
    {"reseed_overlap": 0.6, "batch_size": 30, "first_memory": 5.0},
)
LONGEST = 120  # seconds for one process, without those in which other programs had all cores


class Survivor:
    """One run, and what was done to it."""

    def __init__(self, folder: Path, configuration: dict[str, object], rng: Random) -> None:
        self.checkpoints, self.out = folder / "run", folder / "model.safetensors"
        self.rng, self.done = rng, collections.Counter[str]()
        self.environment = os.environ | {"OMP_NUM_THREADS": "1", "VICTIM_SETTINGS": json.dumps(configuration)}
        self.environment |= {"PYTHONFAULTHANDLER": "1"}  # an aborted process says where it was

    def start(self, most_bytes: int | None = None) -> subprocess.Popen[str]:
        """Start or resume it, perhaps where no file can grow beyond some bytes, as on a full disk."""

        def limit() -> None:
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

        command = [sys.executable, str(VICTIM), str(self.checkpoints), str(self.out)]
        return subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=self.environment, preexec_fn=limit
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for its end, and abort it where it hangs; return its code and what it said."""
        taken = Stopwatch(process.pid)
        while True:
            try:
                _, said = process.communicate(timeout=0.5)
                return process.returncode, said
            except subprocess.TimeoutExpired:
                if taken.seconds() > LONGEST:
                    process.send_signal(signal.SIGABRT)

    def kill(self) -> None:
        """End it by SIGKILL, some time after it has gone further than before."""
        before, process = list_checkpoints(self.checkpoints)[-1:], self.start()
        taken = Stopwatch(process.pid)
        while process.poll() is None and list_checkpoints(self.checkpoints)[-1:] == before:
            time.sleep(0.005)
            if taken.seconds() > LONGEST:
                process.send_signal(signal.SIGABRT)
        time.sleep(self.rng.choice((0.0, 0.02, 0.2, 1.0)) * self.rng.random())
        process.send_signal(signal.SIGKILL)
        code, said = self.finish(process)
        assert code in (0, -signal.SIGKILL), (code, said)  # 0: it was faster
        self.done["kills"] += code != 0

    def fill_the_disk(self) -> None:
        """Let writing fail: the process must say so, and what was there must stay."""
        kept = {path: path.read_bytes() for path in list_checkpoints(self.checkpoints)}
        code, said = self.finish(self.start(most_bytes=self.rng.choice((0, 1, 4096))))
        assert code > 0, (code, said)
        assert "File too large" in said, said
        for path, content in kept.items():
            assert path.read_bytes() == content, path
        self.done["full disks"] += 1

    def change_a_file(self) -> None:
        """Damage the last checkpoint: it must be refused and left alone; without it the one before is good."""
        paths = list_checkpoints(self.checkpoints)
        if len(paths) < 2:
            return
        content = bytearray(paths[-1].read_bytes())
        if self.rng.random() < 0.5:
            del content[self.rng.randrange(len(content)) :]
        else:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        paths[-1].write_bytes(content)
        code, said = self.finish(self.start())
        assert code > 0, (code, said)
        assert "ValueError: path: expected" in said, said
        assert paths[-1].read_bytes() == content
        paths[-1].unlink()
        self.done["changed files"] += 1

    def live(self) -> bytes:
        """Disturb it a few times, and return the model of the end."""
        for _ in range(self.rng.randint(0, 2)):
            self.rng.choice((self.kill, self.fill_the_disk, self.change_a_file))()
        while not self.done["kills"] and not self.out.exists():
            self.kill()
        code, said = self.finish(self.start())
        assert code == 0, (code, said)
        assert not list(self.checkpoints.glob(".*"))
        return self.out.read_bytes()


def main() -> int:
    """Go on until the time or the survivors are over; return 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--survivors", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, end = Random(options.seed), time.monotonic() + 60 * options.minutes
    totals: collections.Counter[str] = collections.Counter()
    references: dict[int, bytes] = {}
    while time.monotonic() < end and totals["survivors"] < options.survivors:
        with tempfile.TemporaryDirectory(prefix="liesparse-soak-") as folder:
            which = rng.randrange(len(CONFIGURATIONS))
            if which not in references:
                undisturbed = Survivor(Path(folder) / "undisturbed", CONFIGURATIONS[which], rng)
                assert undisturbed.finish(undisturbed.start())[0] == 0
                references[which] = undisturbed.out.read_bytes()
            survivor = Survivor(Path(folder), CONFIGURATIONS[which], rng)
            equal = survivor.live() == references[which]
        totals += survivor.done + collections.Counter({"survivors": 1, "equal results": int(equal)})
        print(", ".join(f"{count} {name}" for name, count in sorted(totals.items())), flush=True)
    return int(totals["equal results"] != totals["survivors"])


if __name__ == "__main__":
    sys.exit(main())
