"""The library's sentences about its arguments, in the words of the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from click import Command


def in_flags(sentence: str, command: Command) -> str:
    """Names the command's flag where a sentence begins with an argument's name, sets it to True, or ends with it.

    `data_dir was left out` becomes `--data-dir was left out`, `or force=True to overwrite` becomes `or --force to
    overwrite`, `another copy into data_dir.` becomes `another copy into --data-dir.` Elsewhere, and at the end where it
    has no underscore, a name may be an English word or a part of a path, and stays as it is.
    """
    for parameter in command.params:
        flag = parameter.opts[0] if parameter.param_type_name == "option" else parameter.human_readable_name
        name = re.escape(parameter.name or "")
        places = [rf"^{name}\b", rf"(?<= ){name}=True\b"] + [rf"(?<= ){name}(?=\.$)"] * ("_" in name)
        sentence = re.sub("|".join(places), flag, sentence)
    return sentence
