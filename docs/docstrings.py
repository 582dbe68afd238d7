"""What the API pages need of docstrings: `rows, cols: size of the grid` describes two arguments in one line."""

import re

from griffe import Extension, Object

SEVERAL = re.compile(r"^( +\w+(?:, \w+)+): ", flags=re.M)


class SeveralNames(Extension):
    """Joins such names by no-break spaces, as a plain one would end the name."""

    def on_object(self, *, obj: Object, **_) -> None:
        if obj.docstring:
            obj.docstring.value = SEVERAL.sub(lambda found: found[0].replace(", ", ",\u00a0"), obj.docstring.value)
