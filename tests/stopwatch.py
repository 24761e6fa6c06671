"""How long a process has taken, on a machine that others use too."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


class Stopwatch:
    """Seconds of a process and those it has started, without those in which they waited for a core.

    Sleep counts, so what hangs without computing is noticed. Where several threads wait at once, the longest wait is
    left out, but never what they have computed together. It must be read often, as ended threads say nothing.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self._known: dict[str, tuple[float, float]] = {}  # what each thread has run and waited
        self._ran, self._waited = 0.0, 0.0
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._look()
        self._ran, self._waited, self._begun = 0.0, 0.0, time.monotonic()

    def seconds(self) -> float:
        """Return the seconds since the start."""
        self._look()
        return max(time.monotonic() - self._begun - self._waited, self._ran)

    def _look(self) -> None:
        longest, processes = 0.0, [str(self.process)]
        for process in processes:
            with contextlib.suppress(OSError):  # it has ended
                for thread in Path(f"/proc/{process}/task").iterdir():
                    processes += (thread / "children").read_text().split()
                    before = self._known.get(thread.name, (0.0, 0.0))
                    ran, waited = (int(word) / 1e9 for word in (thread / "schedstat").read_text().split()[:2])
                    self._ran += ran - before[0]
                    longest = max(longest, waited - before[1])
                    self._known[thread.name] = ran, waited
        self._waited += longest
