"""Settings that are left out of a sweep or a prediction, in sentences: one for each reason, names on request."""

from collections.abc import Collection, Iterable, Iterator

NAMES = "names with -v"


def lines(
    left_out: Iterable[tuple[str, str]], total: int, in_full: bool = False, kept: Collection[str] = ()
) -> Iterator[str]:
    """Yield a line for each reason, with the number of settings that are left out for it.

    Parameters
    ----------
    left_out
        Name and reason of each setting.
    total
        The number of all settings, those that are left out included.
    in_full
        Whether each name follows in a line; a single one is always in its reason's line.
    kept
        Names of settings that are not left out: a name that one of these also has would mislead.
    """
    names: dict[str, list[str]] = {}
    for name, why in left_out:
        names.setdefault(why, []).append(name)
    for why, all_of_them in names.items():
        own = sorted(set(all_of_them) - set(kept))
        listed = own if in_full and len(own) > 1 else []
        yield f"left out {len(all_of_them)} of {total} settings{_in_line(own, in_full)}: {why}"
        yield from (f"  {name}" for name in listed)


def _in_line(names: list[str], in_full: bool) -> str:
    if len(names) == 1:
        return f" ({names[0]})"
    return f" ({NAMES})" if names and not in_full else ""
