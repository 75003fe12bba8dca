"""Files of baselines: compressed or plain JSON, the same bytes for the same content."""

import gzip
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"

#: Its presence says that the data was recorded while plans were still being changed.
PROVISIONAL = DATA / "provisional"

NAMES = {
    "plans": "plans.json.gz",
    "texts": "texts.json.gz",
    "bits": "bits.json",
    "surface": "surface.json",
    "begun_run": "begun_run_{}.tar.xz",
}


def write(path: Path, content: Any) -> None:
    """Write JSON; compressed if the name ends with ``.gz``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    data = text.encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def read(path: Path) -> Any:
    """Return the content of a file that `write` has made."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
