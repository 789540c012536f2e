"""The pages that a problem's ``type`` points to: docs/problems, also when Refeed is installed as a wheel."""

import re
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException

_HERE: Final = Path(__file__).parent
# A wheel has them beside this module (see pyproject.toml), a clone under docs.
_FOLDERS: Final = (_HERE / "problems", _HERE.parent / "docs" / "problems")


def read_problem_page(code: str) -> str:
    """Return the page of ``code``, in Markdown.

    Raises:
        HTTPException: no error has this code.
    """
    if re.fullmatch(r"[a-z_]{1,64}", code):
        for folder in _FOLDERS:
            page = folder / f"{code}.md"
            if page.is_file():
                return page.read_text()
    raise HTTPException(404, "No error has this code.")
