"""What the API pages need of the source: how it writes defaults, and how its docstrings are written.

`rows, cols: size of the grid` describes two arguments in one line. A block of code follows two colons. A section with
examples is called Example.
"""

import re

from griffe import Attribute, Class, ExprCall, Extension, Object

SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): ", flags=re.M)
COLONS = re.compile(r"::$", flags=re.M)
EXAMPLE = re.compile(r"^( *)Example:$", flags=re.M)


class AsWritten(Extension):
    def on_attribute_instance(self, *, attr: Attribute, **_) -> None:
        """Shows the default of a hyper-parameter instead of the call that also checks it."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "hyper":
            attr.value = attr.value.arguments[0]

    def on_object(self, *, obj: Object, **_) -> None:
        """Joins several names by no-break spaces, as a plain one would end the name, and adds their type."""
        if not obj.docstring:
            return

        def joined(found: re.Match[str]) -> str:
            names = found[2].replace(", ", ",\u00a0")
            first = obj.members.get(found[2].partition(",")[0]) if isinstance(obj, Class) else None
            kind = f" ({first.annotation})" if isinstance(first, Attribute) and first.annotation else ""
            return f"{found[1]}{names}{kind}: "

        words = EXAMPLE.sub(r"\1Examples:", COLONS.sub(":", obj.docstring.value))
        obj.docstring.value = SEVERAL.sub(joined, words)
