"""`depth-memory data`: text to prepared data, and what prepared data holds."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, preparing
from depth_memory.errors import Range, UserError, shown

if TYPE_CHECKING:
    from depth_memory.data import Manifest, Tokenizer

EXAMPLES = """\
depth-memory data prepare books/ --out corpus --vocab-size 8192
depth-memory data prepare web.jsonl --out corpus --tokenizer tokenizer.json --workers 4
depth-memory data prepare books/ --out corpus --tokenizer smollm2-ldm
depth-memory data prepare hf://datasets/HuggingFaceFW/fineweb-edu/sample/10BT --out edu --workers 8
depth-memory data verify corpus
"""
SHARDS = arguments.Number(int, Range(1, 2**30))
HELD_OUT = Range(0, 10**9)
WORKERS = arguments.Number(int, Range(1, 1024))


def add(commands: Any) -> None:
    """Add the command and its three parts."""
    parser = arguments.add_command(
        commands,
        "data",
        info,
        summary="Prepare text for training, check it, describe it.",
        examples=EXAMPLES,
    )
    parts = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    _add_prepare(parts)
    for name, action, summary in (
        ("verify", verify, "Compare every byte of prepared data with its manifest."),
        ("info", info, "What prepared data holds, and how it was made."),
    ):
        part = arguments.add_command(
            parts, name, action, summary=summary, examples=f"depth-memory data {name} corpus"
        )
        part.add_argument("directory", metavar="DIR", type=arguments.path, help="prepared data")
        part.add_argument("--json", action="store_true", help="for programs to read")


def _add_prepare(parts: Any) -> None:
    parser = arguments.add_command(
        parts,
        "prepare",
        prepare,
        summary="Tokenise text, JSON lines, Parquet or a dataset of the hub into a new folder. "
        "After a kill, the same command goes on from the last finished shard.",
        examples=EXAMPLES,
    )
    add = parser.add_argument
    add(
        "sources",
        metavar="SOURCE",
        nargs="+",
        type=arguments.source,
        help="files and folders, or hf://datasets/OWNER/NAME[@REVISION][/FILE, FOLDER or PATTERN]",
    )
    add("--out", metavar="DIR", type=arguments.path, required=True, help="the folder to create")
    add(
        "--tokenizer",
        metavar="FILE|DIR",
        type=arguments.path,
        help="a tokenizer.json, or the directory of a model that has one; by default that of the "
        "embedded corpus, 4096 entries",
    )
    add(
        "--vocab-size",
        metavar="N",
        type=arguments.Number(int, Range(1, 2**20)),
        help="learn a tokenizer of N entries from the sources instead",
    )
    add(
        "--validation",
        metavar="SHARE|COUNT",
        type=_share_or_count,
        default=0.01,
        help="documents to hold out: 0.05 is a share, 5 a number (default: 0.01)",
    )
    add("--separator", default="eos", help="eos (default) or none, after every document")
    add("--text-field", metavar="NAME", default="text", help="of JSON lines and Parquet")
    add("--shard-tokens", metavar="N", type=SHARDS, default=2**24, help="per shard")
    add("--workers", metavar="N", type=WORKERS, default=1, help="threads (default: 1)")
    add("--restart", action="store_true", help="throw half-finished work for this DIR away")


def prepare(args: argparse.Namespace) -> None:
    """Prepare the sources, and describe what came out."""
    from depth_memory import data

    tokenizer = _tokenizer(args)
    with preparing.shown() as shown:
        manifest = data.prepare(
            args.sources,
            args.out,
            tokenizer=tokenizer,
            validation=args.validation,
            workers=args.workers,
            shard_tokens=args.shard_tokens,
            text_field=args.text_field,
            separator=args.separator,
            restart=args.restart,
            on_progress=shown.progress,
            on_note=shown.note,
        )
    _describe(args.out, manifest)


def verify(args: argparse.Namespace) -> None:
    """Read everything, and describe it."""
    from depth_memory import data

    data.read_manifest(args.directory)
    console.note(f"reading {args.directory}")
    _present(args, data.verify(args.directory))


def info(args: argparse.Namespace) -> None:
    """Describe prepared data by its manifest."""
    from depth_memory import data

    _present(args, data.read_manifest(args.directory))


def _present(args: argparse.Namespace, manifest: Manifest) -> None:
    if args.json:
        console.show_json(dataclasses.asdict(manifest))
    else:
        _describe(args.directory, manifest)


def _describe(directory: Path, manifest: Manifest) -> None:
    recipe = manifest.recipe
    console.show(
        f"{directory}: vocabulary {manifest.vocab_size}, separator {recipe.separator} "
        f"({recipe.end}), tokenizer {recipe.tokenizer_sha256[:12]}"
    )
    header = ("split", "documents", "tokens", "bytes", "shards")
    rows = [
        (name, str(s.documents), str(s.tokens), str(s.bytes), str(len(s.shards)))
        for name, s in manifest.splits.items()
    ]
    console.show_table(header, rows)


def _tokenizer(args: argparse.Namespace) -> Tokenizer | Path:
    """The one asked for, learned if need be."""
    from depth_memory import data
    from depth_memory.data.sources import find_files, read_documents

    if args.vocab_size is None:
        return args.tokenizer or data.default_tokenizer()
    if args.tokenizer is not None:
        raise UserError("--vocab-size: got a --tokenizer beside it; allowed: one of the two")
    files = find_files(args.sources)
    if any(file.remote for file in files):
        raise UserError(
            "--vocab-size: got a source on the hub; allowed: local ones, or --tokenizer"
        )
    console.note(f"learning a tokenizer of {args.vocab_size} entries")
    documents = read_documents(files, text_field=args.text_field)
    return data.train_tokenizer((document.text for document in documents), args.vocab_size)


def _share_or_count(text: str) -> float | int:
    """`0.05` is a share, `5` a number of documents; which ones are allowed is the library's say."""
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        if HELD_OUT.allows(value):
            return value
    allowed = f"a share in [0, 1) or a number of documents, {HELD_OUT}"
    raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: {allowed}")
