"""Proleptic Gregorian calendar of the years -999,999,999 to 999,999,999; a day is its number since 1970.

A day is its number since 1970-01-01. ``datetime.date`` covers only the years 1 to 9999, so every day is mapped to the
day at the same place of the 400-year cycle 2000 to 2399, which has the same months, weekdays and ISO weeks.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from datetime import date

from kgserve.errors import InvalidInput

MAX_YEAR = 999_999_999
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_CYCLE_FIRST_YEAR = 2000
_CYCLE_START = date(_CYCLE_FIRST_YEAR, 1, 1).toordinal()
_EPOCH = date(1970, 1, 1).toordinal()
_WEEK_DAYS = 7
_YEAR_MONTHS = 12
_QUARTER_MONTHS = 3


def date_to_epoch_days(year: int, month: int = 1, day: int = 1) -> int:
    """Return the days from 1970-01-01 to a date. Raises InvalidInput if the calendar lacks the date."""
    check_year_range(year)
    cycle, cycle_year = divmod(year - _CYCLE_FIRST_YEAR, _CYCLE_YEARS)
    try:
        ordinal = date(_CYCLE_FIRST_YEAR + cycle_year, month, day).toordinal()
    except (ValueError, OverflowError):
        raise InvalidInput(f"there is no month {month} and day {day} in the year {year}") from None
    return ordinal - _EPOCH + cycle * _CYCLE_DAYS


def map_day_to_400_year_cycle(days: int) -> tuple[date, int]:
    """Return a day's counterpart in the years 2000 to 2399, and the years between the two."""
    cycle, rest = divmod(days + _EPOCH - _CYCLE_START, _CYCLE_DAYS)
    return date.fromordinal(_CYCLE_START + rest), cycle * _CYCLE_YEARS


def epoch_days_to_year_month_day(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of the month of a day number since 1970-01-01."""
    day, years = map_day_to_400_year_cycle(days)
    return day.year + years, day.month, day.day


def check_year_range(year: int) -> None:
    """Raise InvalidInput for a year out of range."""
    if not -MAX_YEAR <= year <= MAX_YEAR:
        raise InvalidInput(f"the year {year} is out of range; years reach from -{MAX_YEAR} to {MAX_YEAR}")


def check_epoch_days_range(days: int) -> int:
    """Return a day number since 1970-01-01. Raises InvalidInput if its year is out of range."""
    if not _MIN_DAYS <= days <= _MAX_DAYS:
        raise InvalidInput(f"the date is out of range; years reach from -{MAX_YEAR} to {MAX_YEAR}")
    return days


def _check_field(name: str, value: int, first: int, last: int) -> None:
    if not first <= value <= last:
        raise InvalidInput(f"{name} is {value}; it must be {first} to {last}")


def _month_days(year: int, month: int) -> int:
    return monthrange(_CYCLE_FIRST_YEAR + year % _CYCLE_YEARS, month)[1]


def _to_clamped_days(year: int, month: int, day: int) -> int:
    """Return a day, or the last one of its month if the month is shorter."""
    check_year_range(year)
    return date_to_epoch_days(year, month, min(day, _month_days(year, month)))


def count_months_since_year_zero(days: int) -> int:
    """Return the number of months since the start of the year 0."""
    year, month, _ = epoch_days_to_year_month_day(days)
    return year * _YEAR_MONTHS + month - 1


def add_months(days: int, months: int) -> int:
    """Add months to a date; the day is at most that month's last. Raises InvalidInput if out of range."""
    year, month = divmod(count_months_since_year_zero(days) + months, _YEAR_MONTHS)
    return _to_clamped_days(year, month + 1, epoch_days_to_year_month_day(days)[2])


# Fields


def year_of(days: int) -> int:
    """Return the calendar year."""
    return epoch_days_to_year_month_day(days)[0]


def month_of(days: int) -> int:
    """Return the month, 1 to 12."""
    return map_day_to_400_year_cycle(days)[0].month


def day_of_month(days: int) -> int:
    """Return the day of the month."""
    return map_day_to_400_year_cycle(days)[0].day


def quarter_of(days: int) -> int:
    """Return the quarter, 1 to 4."""
    return (month_of(days) - 1) // _QUARTER_MONTHS + 1


def iso_week_of(days: int) -> int:
    """Return the ISO week, 1 to 53."""
    return map_day_to_400_year_cycle(days)[0].isocalendar().week


def iso_week_year_of(days: int) -> int:
    """Return the year that the ISO week belongs to."""
    day, years = map_day_to_400_year_cycle(days)
    return day.isocalendar().year + years


def iso_weekday_of(days: int) -> int:
    """Return the ISO weekday: 1 for Monday to 7 for Sunday."""
    return (days + 3) % _WEEK_DAYS + 1


def day_of_year(days: int) -> int:
    """Return the day of the year, 1 to 366."""
    return days - date_to_epoch_days(year_of(days)) + 1


def day_of_quarter(days: int) -> int:
    """Return the day of the quarter, 1 to 92."""
    return days - start_of_quarter(days) + 1


def start_of_quarter(days: int) -> int:
    """Return the first day of the quarter."""
    return date_to_epoch_days(year_of(days), (quarter_of(days) - 1) * _QUARTER_MONTHS + 1)


def start_of_iso_week_year(week_year: int) -> int:
    """Return the Monday of the first ISO week of a year."""
    fourth = date_to_epoch_days(week_year, 1, 4)
    return fourth - iso_weekday_of(fourth) + 1


def _week_count(week_year: int) -> int:
    return map_day_to_400_year_cycle(date_to_epoch_days(week_year, 12, 28))[0].isocalendar().week


# Changes of a single field; the smaller fields stay where they can.


def set_year(days: int, year: int) -> int:
    """Change the year; 29 February becomes the 28th in other years."""
    _, month, day = epoch_days_to_year_month_day(days)
    return _to_clamped_days(year, month, day)


def set_iso_week_year(days: int, year: int) -> int:
    """Change the year of the ISO week; week 53 becomes 52 in a year without it."""
    check_year_range(year)
    week = min(iso_week_of(days), _week_count(year))
    return start_of_iso_week_year(year) + (week - 1) * _WEEK_DAYS + iso_weekday_of(days) - 1


def set_quarter(days: int, quarter: int) -> int:
    """Change the quarter of a date and keep the position of its month in the quarter."""
    _check_field("quarter", quarter, 1, 4)
    return add_months(days, (quarter - quarter_of(days)) * _QUARTER_MONTHS)


def set_month(days: int, month: int) -> int:
    """Change the month of a date and keep its day of the month."""
    _check_field("month", month, 1, _YEAR_MONTHS)
    year, _, day = epoch_days_to_year_month_day(days)
    return _to_clamped_days(year, month, day)


def set_iso_week(days: int, week: int) -> int:
    """Change the ISO week and keep the weekday."""
    year = iso_week_year_of(days)
    last = _week_count(year)
    if not 1 <= week <= last:
        raise InvalidInput(f"week is {week}; the year {year} has the weeks 1 to {last}")
    return days + (week - iso_week_of(days)) * _WEEK_DAYS


def set_day_of_year(days: int, day: int) -> int:
    """Change the day of the year."""
    year = year_of(days)
    last = 337 + _month_days(year, 2)
    if not 1 <= day <= last:
        raise InvalidInput(f"ordinalDay is {day}; the year {year} has the days 1 to {last}")
    return date_to_epoch_days(year) + day - 1


def set_day_of_quarter(days: int, day: int) -> int:
    """Change the day of the quarter."""
    start = start_of_quarter(days)
    year, month, _ = epoch_days_to_year_month_day(start)
    last = sum(_month_days(year, month + following) for following in range(_QUARTER_MONTHS))
    if not 1 <= day <= last:
        raise InvalidInput(f"dayOfQuarter is {day}; the quarter has the days 1 to {last}")
    return start + day - 1


def set_iso_weekday(days: int, day: int) -> int:
    """Change the ISO weekday within the week."""
    _check_field("dayOfWeek", day, 1, _WEEK_DAYS)
    return days + day - iso_weekday_of(days)


def set_day_of_month(days: int, day: int) -> int:
    """Change the day of the month."""
    year, month, _ = epoch_days_to_year_month_day(days)
    _check_field("day", day, 1, 31)
    return date_to_epoch_days(year, month, day)


_MIN_DAYS = date_to_epoch_days(-MAX_YEAR)
_MAX_DAYS = date_to_epoch_days(MAX_YEAR, 12, 31)

DATE_SETTERS: dict[str, Callable[[int, int], int]] = {
    "year": set_year,
    "quarter": set_quarter,
    "month": set_month,
    "week": set_iso_week,
    "ordinalDay": set_day_of_year,
    "dayOfQuarter": set_day_of_quarter,
    "dayOfWeek": set_iso_weekday,
    "day": set_day_of_month,
}
"""Functions that change a field of a day, in the order in which they apply."""
