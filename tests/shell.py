"""Commands without a new process for each call, or in processes that fork: importing torch takes longer than most."""

import contextlib
import io
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import traceback
import warnings
from typing import NamedTuple

from liesparse.cli import main
from liesparse.reproduce import figures, table1

COMMAND = [sys.executable, "-m", "liesparse"]
IMPORTED = multiprocessing.get_context("forkserver")
PARTS = ("cli", "estimators", "run_directory", "reproduce.table1", "web.server", "figures", "baselines")
IMPORTED.set_forkserver_preload([f"liesparse.{part}" for part in PARTS])


def run(*arguments, cwd=".", **options):
    """Run a command in this process, or with options such as ``env`` in one of its own; return what it printed."""
    words = [str(argument) for argument in arguments]
    if options:
        return Forked(call_main, *words, apart=True, cwd=cwd, **options).complete()
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        errors = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(contextlib.chdir(cwd))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        before, sys.argv = sys.argv, ["liesparse", *words]
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            code = 1
        finally:
            sys.argv = before
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


class Missing(NamedTuple):
    """What Python asks for a package that is not installed."""

    package: str

    def find_spec(self, name, *_):
        if name == self.package:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def call_main(*words, most_bytes=None, missing=None, n_test=None):
    """Be the command line, where files may not be larger, a package is missing, or few test images are enough."""
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    if missing is not None:
        for name in [name for name in sys.modules if name.startswith((missing, "liesparse.web"))]:
            del sys.modules[name]
        sys.meta_path.insert(0, Missing(missing))
    if n_test is not None:
        table1.N_TEST = figures.N_TEST = n_test
    sys.argv = ["liesparse", *map(str, words)]
    main()


class Forked:
    """What ``subprocess.Popen`` would be for a function: its streams, one or two, signals and code."""

    def __init__(self, function, *arguments, env=None, cwd=".", apart=False):
        pipes = [IMPORTED.Pipe(duplex=False) for _ in range(1 + apart)]
        call = (env, os.path.abspath(cwd), [writer for _, writer in pipes], function, arguments)
        self._process = IMPORTED.Process(target=_be, args=call)
        self._process.start()
        for _, writer in pipes:
            writer.close()
        readers = [os.fdopen(os.dup(reader.fileno())) for reader, _ in pipes]
        self.stdout, self.stderr, self.pid = readers[0], readers[-1], self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.wait(60)
        self.stdout.close()
        self.stderr.close()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self._process.kill()

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=300):
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return self.poll()

    def complete(self, timeout=300):
        """Wait for its end; return its code and all that it printed."""
        alarm = threading.Timer(timeout, self.kill)
        alarm.start()
        with self:
            words = self.stdout.read()
            errors = "" if self.stderr is self.stdout else self.stderr.read()
            code = self.wait(60)
        alarm.cancel()
        return subprocess.CompletedProcess(self.pid, code, words, errors)


def _be(environment, folder, streams, function, arguments):
    multiprocessing.set_start_method(None, force=True)  # what it starts is started as always
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    os.chdir(folder)
    os.dup2(streams[0].fileno(), 1)
    os.dup2(streams[-1].fileno(), 2)
    for stream in streams:
        stream.close()
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    function(*arguments)
