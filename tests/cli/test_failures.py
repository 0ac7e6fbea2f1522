"""What the machine refuses, and who interrupts: one line, and nothing is lost."""

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from depth_memory import cli
from tests.cli.conftest import assert_refused, contents, on, write_texts

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_prompt_from_standard_input_that_is_no_text(command, monkeypatch):
    for source, message in (
        (io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8"), "bytes that are no text at 2"),
        (io.StringIO("\udcff"), "bytes that are no text at 0"),
        (None, "- with standard input closed"),
    ):
        monkeypatch.setattr(sys, "stdin", source)
        assert_refused(command("generate", "a", "--prompt", "-"), f"--prompt: got {message}; allo")


def fail_with(monkeypatch, error):
    from depth_memory import data

    def read_manifest(_):
        raise error

    monkeypatch.setattr(data, "read_manifest", read_manifest)


FAILURES = {
    errno.ENOSPC: "No space left on device",
    errno.EEXIST: "File exists",
    errno.ENOTDIR: "Not a directory",
    errno.EISDIR: "Is a directory",
    errno.ENAMETOOLONG: "File name too long",
    errno.ECONNREFUSED: "Connection refused",
}


@pytest.mark.parametrize("number", FAILURES)
def test_a_failure_of_the_machine(command, monkeypatch, number):
    fail_with(monkeypatch, OSError(number, FAILURES[number], "metrics.jsonl"))
    done = command("data", "info", "corpus")
    assert (done.code, done.err) == (1, f"error: metrics.jsonl: {FAILURES[number]}\n")


@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("CUDA out of memory. Tried")])
def test_too_little_memory(command, monkeypatch, error):
    fail_with(monkeypatch, error)
    done = command("data", "info", "corpus")
    assert done.code == 1
    assert done.err == (
        f"error: memory: got too little ({error}); "
        "allowed: a smaller model, or fewer rows at a time\n"
    )


@pytest.mark.parametrize("argv", [["evaluate"], ["train", "debug", "--from"]])
def test_a_name_that_is_too_long(command, argv):
    done = command(*argv, "n" * 300)
    assert (done.code, done.out, len(done.lines)) == (1, "", 1)
    assert done.err.endswith("File name too long\n")


def test_a_full_disk_while_training_keeps_what_there_is(command, corpus, tmp_path, monkeypatch):
    from depth_memory.train import checkpoint

    out = tmp_path / "run"
    good, lost = (out / "checkpoints" / f"step-{step:08d}" for step in (5, 10))
    assert command("train", "debug", *on(corpus, out)).code == 0
    shutil.rmtree(lost)

    def save_file(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    before = contents(good)
    done = command("train", "debug", *on(corpus, out))
    assert done.code == 2
    assert done.lines[-1].startswith("error: checkpoint of step 10 not written (")
    assert done.lines[-1].endswith(f"last good checkpoint: {good}")
    assert contents(good) == before
    assert not lost.exists()


def test_an_interrupt(command, monkeypatch):
    from depth_memory import data

    monkeypatch.setattr(data, "read_manifest", lambda _: signal.raise_signal(signal.SIGINT))
    # a test run in the background of a shell is started with the signal ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = command("data", "info", "corpus")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")


def test_an_interrupt_that_a_library_turned_into_another_error(command, monkeypatch):
    from depth_memory import data

    def read_manifest(_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half imported") from None

    monkeypatch.setattr(data, "read_manifest", read_manifest)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = command("data", "info", "corpus")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_while_the_command_is_imported():
    program = """
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Finder:
            def find_spec(name, path, target=None):
                if name == "depth_memory.cli.sweep":
                    signal.raise_signal(signal.SIGINT)
        sys.meta_path.insert(0, Finder)
        from depth_memory.__main__ import main
        main()
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_in_a_program_that_a_library_made_of_text(tmp_path):
    """`python -m` would end by the signal, not by the exit code."""
    program = """
        import signal, sys
        from depth_memory import cli, data
        signal.signal(signal.SIGINT, signal.default_int_handler)
        data.read_manifest = lambda _: exec("signal.raise_signal(signal.SIGINT)")
        sys.exit(cli.main(["data", "info", "corpus"]))
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    argv = [sys.executable, "-m", "program"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def shell(redirections, *argv, **environment):
    """A command as a process, with redirections as in a shell."""
    line = f'exec "$@" {redirections}'
    command = [sys.executable, "-m", "depth_memory", *map(str, argv)]
    env = {**os.environ, **environment}
    return subprocess.run(["sh", "-c", line, "sh", *command], capture_output=True, env=env)


def test_output_that_is_closed_or_full(corpus):
    info = ["data", "info", corpus]
    assert [shell(r, *info).returncode for r in ("<&-", ">&-", "<&- >&- 2>&-")] == [0, 0, 0]
    for argv in (info, ["--help"]):
        full = shell("> /dev/full", *argv)
        assert full.returncode == 1
        assert full.stderr == b"error: standard output: No space left on device\n"


def test_a_terminal_that_lacks_characters(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "\u65e5")
    done = shell("", "data", "info", tmp_path / "\u65e5", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"{tmp_path}/?: vocabulary 300, ".encode())


def test_a_reader_that_goes_away(corpus):
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "depth_memory", "data", "info", str(corpus)]
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_bug_shows_its_traceback(monkeypatch):
    fail_with(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["data", "info", "corpus"])


def test_an_error_of_several_lines_becomes_one(command, monkeypatch):
    from depth_memory.errors import UserError

    fail_with(monkeypatch, UserError("field: got\n  two lines"))
    assert command("data", "info", "corpus").err == "error: field: got two lines\n"


def test_texts_can_be_prepared_by_the_default_separator_only_once(command, corpus, tmp_path):
    sources = write_texts(tmp_path / "texts", 5)
    argv = ["data", "prepare", sources, "--out", tmp_path / "new", "--validation", "2"]
    argv += ["--tokenizer", corpus / "tokenizer.json"]
    assert command(*argv).code == 0
    assert command(*argv).code == 0
    assert_refused(command(*argv, "--separator", "none"), "out: ")
    assert_refused(command(*argv, "--separator", "tab"), "separator: got 'tab'; allowed: ")
