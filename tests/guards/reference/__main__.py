"""Writes every page, and says which of them have changed."""

import sys

from tests.guards.reference.pages import FOLDER, PAGES


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, render in PAGES.items():
        place, text = FOLDER / name, render()
        if not place.exists() or place.read_text() != text:
            place.write_text(text)
            sys.stdout.write(f"wrote docs/reference/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
