"""Files that a person names: read, or said in a line why not; and written so that nobody else can read them."""

import gzip
import os
import tempfile
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotloop.core.errors import ConfigError


@contextmanager
def named_errors(verb: str, path: Path) -> Iterator[None]:
    """What the system says is wrong with a file, as a ConfigError that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot {verb} {path}: {error.strerror}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """All that is in a file. Raises ConfigError."""
    try:
        with named_errors("read", path):
            return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line that is not empty and its number, of a text or of one compressed as .gz. Raises ConfigError."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file; compressed files must end in .gz") from None


def write_private(path: Path, data: bytes | str) -> None:
    """Replace a file in one step, readable by its owner only. A failed or interrupted write leaves the old file.

    Raises OSError.
    """
    content = data.encode() if isinstance(data, str) else data
    target = Path(os.path.realpath(path))  # replace what a symbolic link points to, not the link
    descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # created with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        os.unlink(draft)
        raise
