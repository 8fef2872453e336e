"""Numbers with units, short enough for a table."""

from __future__ import annotations

__all__ = ["bytes_words", "us_words"]


def us_words(microseconds: float | None) -> str:
    """Return a time with two or three digits and its unit.

    Example:
        >>> us_words(2.94), us_words(1234.0), us_words(2.5e6)
        ('2.9 us', '1.2 ms', '2.5 s')
    """
    return _words(microseconds, ((1.0, "us"), (1e3, "ms"), (1e6, "s")))


def bytes_words(number: float | None) -> str:
    """Return a number of bytes with two or three digits and its unit.

    Example:
        >>> bytes_words(950), bytes_words(12345), bytes_words(2_900_000)
        ('950 B', '12 kB', '2.9 MB')
    """
    return _words(number, ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")))


def _words(value: float | None, units: tuple[tuple[float, str], ...]) -> str:
    if value is None:
        return "?"
    factor, unit = next((each for each in reversed(units) if value >= each[0]), units[0])
    scaled = value / factor
    whole = unit == "B" or scaled >= 9.95
    return f"{scaled:,.0f} {unit}" if whole else f"{scaled:.2g} {unit}"
