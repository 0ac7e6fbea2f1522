"""The text that comes with the package: 2 MB of English prose, see `prose/PROVENANCE.md`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from depth_memory.data.manifest import MANIFEST_FILE
from depth_memory.data.pipeline import prepare, verify
from depth_memory.data.sources import find_files, read_documents
from depth_memory.data.tokenizer import Tokenizer, train_tokenizer
from depth_memory.errors import UserError
from depth_memory.files import sha256_of

CORPUS = Path(__file__).parent / "prose" / "english.txt.xz"
VOCAB_SIZE = 4096
VALIDATION_DOCUMENTS = 12


def embedded_corpus() -> Iterator[str]:
    """The documents in order: 176 chapters or pieces of them, and parts of addresses."""
    return (document.text for document in read_documents(find_files([CORPUS]), text_field="text"))


@functools.cache
def default_tokenizer() -> Tokenizer:
    """The tokenizer of the embedded corpus, 4096 entries, learned from it in a second or two."""
    return train_tokenizer(embedded_corpus(), VOCAB_SIZE)


def ensure_default(directory: str | Path) -> Path:
    """Prepare the embedded corpus in `directory`, or verify what was prepared there before.

    12 of the documents are held out as `validation`. Takes a few seconds the first time.

    Returns:
        `directory`.

    Raises:
        UserError: Something else is there, or the prepared corpus was altered.
    """
    directory = Path(directory)
    if (directory / MANIFEST_FILE).exists():
        _check_default(directory)
        return directory
    try:
        prepare([CORPUS], directory, tokenizer=default_tokenizer(), validation=VALIDATION_DOCUMENTS)
    except UserError as error:
        problem = str(error).removeprefix("out: ")
        raise UserError(f"embedded corpus: {problem}") from error
    return directory


def _check_default(directory: Path) -> None:
    sources = [source.sha256 for source in verify(directory).recipe.sources]
    if sources != [sha256_of(CORPUS)]:
        raise UserError(f"directory: {directory} holds another corpus; choose another folder")
