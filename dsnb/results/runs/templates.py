"""Templates of sentences, which Python and the page fill alike."""

import re
from collections.abc import Mapping

_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)")


class _Fact(str):
    """The text of a fact."""

    def __format__(self, forms: str) -> str:
        """Return the text, or one of the two forms of a word."""
        if not forms:
            return str(self)
        singular, _, plural = forms.partition("|")
        if self == "1":
            return singular
        return plural


def fill(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template; `web/` has the same function, and the templates come with the page's data.

    `{name}` is a fact, a text or a whole number. `{name:singular|plural}` is `singular` if the fact
    is 1, otherwise `plural`. `[...]` is left out if a fact in it is missing or empty; elsewhere,
    such a fact empties the sentence.
    """
    known = {name: _Fact(fact) for name, fact in facts.items() if fact is not None and str(fact)}
    part = _OPTIONAL.search(template)
    while part:
        kept = ""
        if known.keys() >= {*_NAME.findall(part[1])}:
            kept = part[1]
        template = template.replace(part[0], kept)
        part = _OPTIONAL.search(template)
    if known.keys() >= {*_NAME.findall(template)}:
        return template.format_map(known)
    return ""
