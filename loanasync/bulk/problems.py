"""Problems of input files, which name file, line and column and contain no value of the file."""

from attrs import frozen

_SHOWN = 20  # problems in the text of an error


@frozen
class InputProblem:
    """A problem of one line or one column of an input file. It contains no value of the file.

    Args:
        file: Name of the file.
        line: Number of the line; 0 for the whole file.
        column: Column or JSON member, empty if it has the name of the field.
        field: Field of the request, such as ``postal_code``; empty for a problem of the whole row.
        message: The rule that is broken, and a correction.
        code: Code of the rule, as in `Problem.code`; empty if the value could not be converted.

    Example:
        >>> from loanasync.bulk import InputProblem
        >>> print(InputProblem("orders.csv", 3, "column 'CAP'", "postal_code", "must be five digits"))
        orders.csv: line 3, column 'CAP': postal_code: must be five digits
    """

    file: str
    line: int
    column: str
    field: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.column)))
        return ": ".join(filter(None, (self.file, where, self.field, self.message)))


class InputError(ValueError):
    """An input file or a mapping cannot be used. The text has a line for each of the first problems.

    Args:
        problems: The problems.

    Example:
        >>> from loanasync.bulk import InputError, read
        >>> try:
        ...     read("missing.csv")
        ... except InputError as error:
        ...     print(error)
        missing.csv: file not found
    """

    def __init__(self, problems: tuple[InputProblem, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        lines = [*map(str, self.problems[:_SHOWN])]
        if (others := len(self.problems) - _SHOWN) > 0:
            lines.append(f"and {others:,} more; see InputError.problems")
        return "\n".join(lines)


def input_error(file: str, message: str, line: int = 0) -> InputError:
    """Return an error with one problem."""
    return InputError((InputProblem(file, line, "", "", message),))
