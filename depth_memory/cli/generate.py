"""`depth-memory generate`: prompts continued, token by token or in batches."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, loading, outputs
from depth_memory.errors import UserError, invalid, ranges_of
from depth_memory.files import naming, replaced_file
from depth_memory.generate.prompts import check_text, no_text, read
from depth_memory.generate.settings import CACHES, TEMPERATURES, Settings

if TYPE_CHECKING:
    from depth_memory.generate import Continuation
    from depth_memory.loading import Loaded

EXAMPLES = """\
depth-memory generate runs/ldm --prompt "The old house" --tokens 60 --seed 1
depth-memory generate runs/ldm --prompt "Once" --greedy
echo "It was late" | depth-memory generate runs/ldm --prompt -
depth-memory generate smollm2-ldm --chat --system "Be brief." --prompt "What is a memory?"
depth-memory generate runs/ldm --prompts prompts.jsonl --samples 4 --batch 32 --out texts.jsonl
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "generate",
        run,
        summary="Continue prompts; text to standard output, speed and state to standard error.",
        examples=EXAMPLES,
    )
    loading.add_model(parser)
    _add_prompts(parser)
    _add_sampling(parser.add_argument_group("sampling"))
    parser.add_argument(
        "--batch",
        metavar="N",
        type=_number("batch"),
        default=Settings.batch,
        help=f"continuations at a time (default: {Settings.batch})",
    )
    parser.add_argument(
        "--cache",
        metavar="|".join(CACHES),
        default=Settings.cache,
        help="of keys and values; static is allocated once and its steps are replayed as a CUDA "
        "graph; auto (default) is static on a GPU, else dynamic",
    )


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        action="append",
        help="what to continue, once or more; - reads standard input; nothing begins a new text",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        type=arguments.path,
        help="one prompt per line, or JSON lines (*.jsonl) with a field prompt",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=arguments.path,
        help="write JSON lines (prompt, sample, text, tokens, end) instead of showing the texts",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="a prompt is a user's message: apply the model's chat template",
    )
    parser.add_argument("--system", metavar="TEXT", help="the system's message, with --chat")
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=_number("tokens"),
        default=Settings.tokens,
        help=f"of a continuation, at most (default: {Settings.tokens})",
    )
    parser.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        default=[],
        help="end before this text, once or more",
    )


def _number(field: str) -> arguments.Number:
    """The type of an option that is a whole number of the settings."""
    return arguments.Number(int, ranges_of(Settings)[field])


def _share(field: str) -> arguments.Number:
    return arguments.Number(float, ranges_of(Settings)[field])


def _add_sampling(parser: Any) -> None:
    least = parser.add_mutually_exclusive_group()
    least.add_argument(
        "--temperature",
        metavar="T",
        type=arguments.Number(float, TEMPERATURES, or_zero=True),
        default=Settings.temperature,
        help=f"0 takes the most probable token, 1 samples as the model says (default: "
        f"{Settings.temperature})",
    )
    least.add_argument(
        "--greedy", action="store_true", help="take the most probable token, as temperature 0 does"
    )
    for option, kind, text in (
        ("--top-k", _number, "sample among the N most probable tokens; 0 among all"),
        ("--top-p", _share, "sample among the most probable tokens with a total of at least N"),
        ("--min-p", _share, "sample among tokens at least N times as probable as the first"),
        ("--repetition-penalty", _share, "make tokens that are already there less probable"),
        ("--samples", _number, "continuations of each prompt"),
        ("--seed", _number, "of the samples"),
    ):
        field = option[2:].replace("-", "_")
        default = getattr(Settings, field)
        parser.add_argument(
            option,
            metavar="N",
            type=kind(field),
            default=default,
            help=f"{text} (default: {default:g})",
        )


def run(args: argparse.Namespace) -> None:
    """Show each prompt with its continuation, or write them; say how fast it was."""
    with arguments.as_options(_options(args)):
        settings = _settings(args)
    texts = _prompts(args)
    if args.out is not None:
        outputs.check_file("--out", args.out)
    loaded = loading.load(args.model, args)
    with arguments.as_options(_options(args)):
        given = _given(loaded, texts, args)
        found = _generate(loaded, given, texts, settings, args)
    _report(loaded, found)


def _settings(args: argparse.Namespace) -> Settings:
    names = ("tokens", "top_k", "top_p", "min_p", "repetition_penalty", "samples", "seed", "batch")
    return Settings(
        **{name: getattr(args, name) for name in (*names, "cache")},
        temperature=0.0 if args.greedy else args.temperature,
        stop=tuple(check_text("--stop", text) for text in args.stop),
    )


def _options(args: argparse.Namespace) -> dict[str, str]:
    """Settings and prompts -> the options that they came from."""
    names = {name: f"--{name}" for name in ("tokens", "samples", "stop", "cache", "chat")}
    return names | {"prompt": "--prompt" if args.prompts is None else "--prompts"}


def _prompts(args: argparse.Namespace) -> list[str]:
    """The texts of the prompts."""
    if args.system is not None and not args.chat:
        raise invalid("--system", args.system, "a text, with --chat")
    if args.prompts is not None:
        if args.prompt is not None:
            raise invalid("--prompts", str(args.prompts), "a file, without --prompt")
        return read(args.prompts)
    if args.prompt is None and args.chat:
        raise UserError("--prompt: got nothing; allowed: the user's message, with --chat")
    given = args.prompt or [""]
    return [_read_input() if text == "-" else check_text("--prompt", text) for text in given]


def _read_input() -> str:
    if sys.stdin is None:
        raise UserError("--prompt: got - with standard input closed; allowed: - with an open one")
    try:
        return check_text("--prompt", sys.stdin.read().rstrip("\n"))
    except UnicodeDecodeError as error:
        raise no_text("--prompt", error) from None


def _given(loaded: Loaded, texts: list[str], args: argparse.Namespace) -> Sequence[Any]:
    from depth_memory import generate

    return generate.chat(loaded, texts, system=args.system) if args.chat else texts


def _generate(
    loaded: Loaded,
    given: Sequence[Any],
    texts: list[str],
    settings: Settings,
    args: argparse.Namespace,
) -> Any:
    from depth_memory import generate

    if args.out is not None:
        found = generate.generate(loaded, given, settings)
        _write(args.out, texts, found.continuations)
        return found
    shown = _Shown([""] * len(texts) if args.chat else texts, settings.samples)
    try:
        return generate.generate(loaded, given, settings, show=shown)
    except BaseException:
        shown.stop()
        raise


def _write(path: Path, texts: Sequence[str], found: Iterable[Continuation]) -> None:
    """Write a line for each continuation, all or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as partial, naming(path), partial.open("w", encoding="utf-8") as file:
        for one in found:
            row = {
                "prompt": texts[one.prompt],
                "sample": one.sample,
                "text": one.text,
                "tokens": one.tokens,
                "end": one.end,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    console.show(str(path))


def _report(loaded: Loaded, found: Any) -> None:
    from depth_memory import generate

    console.note(f"{found.tokens} tokens, {found.tokens_per_second:.1f} tokens/s")
    console.note(str(generate.state_bytes(loaded.model)))


class _Shown:
    """Prints the only text as it comes, with its prompt; of several each whole, labelled. Final."""

    def __init__(self, prompts: Sequence[str], samples: int):
        self._prompts, self._samples = prompts, samples
        self._begun = False

    def __call__(self, done: Continuation | None, piece: str) -> None:
        if len(self._prompts) * self._samples > 1:
            assert done is not None
            console.show(self._label(done))
            console.show(self._prompts[done.prompt] + piece)
            return
        console.write(piece if self._begun else self._prompts[0] + piece)
        self._begun = True
        if done is not None:
            console.show()

    def stop(self) -> None:
        """End the line that was begun, if any, so that an error has its own."""
        if self._begun:
            console.show()

    def _label(self, done: Continuation) -> str:
        sample = f", sample {done.sample + 1}" if self._samples > 1 else ""
        return f"== {done.prompt + 1}{sample}"
