"""`depth-memory generate`: a prompt continued, token by token."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, loading
from depth_memory.errors import Range, UserError, invalid

if TYPE_CHECKING:
    from torch import Tensor

    from depth_memory.cli.loading import Loaded
    from depth_memory.data import Tokenizer

EXAMPLES = """\
depth-memory generate runs/ldm --prompt "The old house" --tokens 60 --seed 1
depth-memory generate runs/ldm --prompt "Once" --temperature 0
echo "It was late" | depth-memory generate runs/ldm --prompt -
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "generate",
        run,
        summary="Continue a prompt; text to standard output, speed to standard error.",
        examples=EXAMPLES,
    )
    loading.add_model(parser)
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        default="",
        help="what to continue; - reads standard input; nothing begins a new text",
    )
    parser.add_argument(
        "--tokens", metavar="N", type=arguments.count, default=100, help="at most (default: 100)"
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=arguments.Number(float, Range(1e-3, 1e3), or_zero=True),
        default=0.8,
        help="0 takes the most probable token, 1 samples as the model says (default: 0.8)",
    )
    parser.add_argument(
        "--top-k",
        metavar="K",
        type=arguments.natural,
        default=0,
        help="sample among the K most probable; 0 among all (default)",
    )
    parser.add_argument(
        "--top-p",
        metavar="P",
        type=arguments.Number(float, Range(0.0, 1.0, above=True)),
        default=1.0,
        help="sample among the most probable with a total of at least P (default: 1)",
    )
    parser.add_argument(
        "--seed", metavar="N", type=arguments.seed, default=0, help="of the samples (default: 0)"
    )


def run(args: argparse.Namespace) -> None:
    """Print the prompt and its continuation as it comes; nothing if there can be none."""
    prompt = _read_prompt() if args.prompt == "-" else _checked(args.prompt)
    loaded = loading.load(args.model, tokenizer=args.tokenizer, device=args.device)
    ids = loaded.encode(prompt)
    _check_length(ids.shape[1], args.tokens, loaded.limit)
    stream = _TextStream(loaded.need_tokenizer(), prompt)
    began = time.perf_counter()
    try:
        _continue(loaded, ids, args, stream)
    except BaseException:
        stream.stop()
        raise
    seconds = time.perf_counter() - began
    console.note(f"{stream.count} tokens, {stream.count / seconds:.1f} tokens/s")


def _read_prompt() -> str:
    if sys.stdin is None:
        raise UserError("--prompt: got - with standard input closed; allowed: - with an open one")
    try:
        return _checked(sys.stdin.read().rstrip("\n"))
    except UnicodeDecodeError as error:
        raise _no_text(error) from None


def _checked(prompt: str) -> str:
    """The prompt, which bytes that are no text reach as lone surrogates."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise _no_text(error) from None
    return prompt


def _no_text(error: UnicodeError) -> UserError:
    place = getattr(error, "start", 0)
    return UserError(f"--prompt: got bytes that are no text at {place}; allowed: text in UTF-8")


def _check_length(prompt: int, tokens: int, limit: int) -> None:
    if prompt >= limit:
        raise invalid("--prompt: tokens", prompt, f"at most {limit - 1}: the position limit less 1")
    if prompt + tokens > limit:
        left = f"{limit - prompt}: the position limit {limit} less the prompt's {prompt}"
        raise invalid("--tokens", tokens, f"at most {left}")


def _continue(loaded: Loaded, ids: Tensor, args: argparse.Namespace, stream: _TextStream) -> None:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    def finite(_: Tensor, scores: Tensor) -> Tensor:
        if not scores.max(-1).values.isfinite().all():
            raise UserError(f"{loaded.path}: logits: got some not finite; allowed: finite numbers")
        return scores

    end = loaded.need_tokenizer().end_id
    sampling = {"temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p}
    config = GenerationConfig(
        max_new_tokens=args.tokens,
        do_sample=args.temperature > 0,
        eos_token_id=end,
        pad_token_id=end,
        **(sampling if args.temperature > 0 else {}),
    )
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)
        loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            logits_processor=LogitsProcessorList([finite]),
            streamer=stream,
        )


class _TextStream:
    """Takes tokens from transformers and prints text as soon as it is whole. Final."""

    def __init__(self, tokenizer: Tokenizer, prompt: str = ""):
        self._tokenizer, self._prompt = tokenizer, prompt
        self._ids: list[int] = []
        self._printed = 0
        self._is_prompt = True
        self.count = 0

    def put(self, ids: Tensor) -> None:
        """Take the prompt first, then a token at a time."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self.count += ids.numel()
        self._ids += [i for i in ids.flatten().tolist() if i != self._tokenizer.end_id]
        text = self._tokenizer.decode(self._ids)
        # a character of several bytes may be cut at the end of a token
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._print(text)

    def end(self) -> None:
        """Print what is left."""
        self._print(self._tokenizer.decode(self._ids))
        console.show()

    def stop(self) -> None:
        """End the line that was begun, if any, so that an error has its own."""
        if self._printed:
            console.show()

    def _print(self, text: str) -> None:
        text = self._prompt + text
        console.write(text[self._printed :])
        self._printed = len(text)
