"""Templates of sentences, which Python and the page fill alike."""

import re
from collections.abc import Mapping

_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_NAME = re.compile(r"\{(\w+)(?::([^|}]*)\|([^}]*))?\}")


def fill(template: str, facts: Mapping[str, object]) -> str:
    """Fill a template; `web/` has the same function, and the templates come with the page's data.

    `{name}` is a fact, a text or a whole number. `{name:singular|plural}` is `singular` if the fact
    is 1, otherwise `plural`. `[...]` is left out if a fact in it is missing or empty; elsewhere,
    such a fact empties the sentence.
    """
    texts = {name: str(fact) for name, fact in facts.items() if fact is not None and str(fact)}

    def is_full(text: str) -> bool:
        return all(match[1] in texts for match in _NAME.finditer(text))

    def kept(match: re.Match[str]) -> str:
        return match[1] if is_full(match[1]) else ""

    def filled(match: re.Match[str]) -> str:
        name, singular, plural = match.groups()
        if singular is None:
            return texts[name]
        return singular if texts[name] == "1" else plural

    while _OPTIONAL.search(template):
        template = _OPTIONAL.sub(kept, template)
    if is_full(template):
        return _NAME.sub(filled, template)
    return ""
