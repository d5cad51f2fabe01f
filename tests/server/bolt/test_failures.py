from __future__ import annotations

import pytest

from kgserve import errors
from kgserve.errors import InvalidInput, KgserveError
from kgserve.server.bolt.failures import INTERNAL_MESSAGE, build_failure_message_fields, map_error_to_failure_status
from kgserve.server.bolt.packstream import ProtocolViolation


@pytest.mark.parametrize(
    ("message", "is_executing", "title"),
    [
        ("unexpected ')', at line 1, column 7", False, "Statement.SyntaxError"),
        ("unknown function foo(), at line 1, column 8", False, "Statement.SyntaxError"),
        ("there is no procedure x; available are db.labels, at line 1, column 8", False, "Procedure.ProcedureNotFound"),
        ("division by zero; test the divisor first", True, "Statement.ArithmeticError"),
        ("the sum does not fit into 64 bits", True, "Statement.ArithmeticError"),
        ("parameter $x is missing", False, "Statement.ParameterMissing"),
        ("no value is given for $x, used at line 1, column 8", False, "Statement.ParameterMissing"),
        ("+ cannot combine an integer (1) and a date, at line 1, column 8", True, "Statement.TypeError"),
        ("the argument of size() must be a list or a string, not an integer (1)", True, "Statement.TypeError"),
        ("node 'a' cannot be deleted: it still has the relationship KNOWS", True, "Schema.ConstraintValidationFailed"),
        ("a node with the id 'a' already exists", True, "Schema.ConstraintValidationFailed"),
        (
            "a relationship R exists already, at line 1, column 8",
            False,
            "Schema.ConstraintValidationFailed",
        ),
        ("it creates a second edge; only one edge per source is allowed", False, "Schema.ConstraintValidationFailed"),
        ("node 'a' was deleted; its labels cannot be read", True, "Statement.EntityNotFound"),
        ("`n` must be positive", False, "Statement.ArgumentError"),
    ],
)
def test_messages_about_statements_have_a_status(message: str, is_executing: bool, title: str) -> None:
    assert (
        map_error_to_failure_status(InvalidInput(message), is_executing=is_executing).code == f"Neo.ClientError.{title}"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.KindNotAllowed("x"), "Neo.ClientError.Schema.ConstraintValidationFailed"),
        (errors.Unauthenticated("x"), "Neo.ClientError.Security.Unauthorized"),
        (errors.Forbidden("x"), "Neo.ClientError.Security.Forbidden"),
        (errors.NotFound("x"), "Neo.ClientError.Statement.EntityNotFound"),
        (errors.NoStore("x"), "Neo.ClientError.Database.DatabaseNotFound"),
        (errors.TimedOut("x"), "Neo.ClientError.Transaction.TransactionTimedOut"),
        (errors.Conflict("x"), "Neo.TransientError.Transaction.Outdated"),
        (errors.Gone("x", 1), "Neo.ClientError.Transaction.InvalidBookmark"),
        (errors.TooLarge("x"), "Neo.ClientError.General.TransactionOutOfMemoryError"),
        (errors.RateLimited("x"), "Neo.TransientError.Request.NoThreadsAvailable"),
        (errors.ServedElsewhere("x"), "Neo.ClientError.Cluster.NotALeader"),
        (errors.Unavailable("x"), "Neo.TransientError.General.DatabaseUnavailable"),
        (errors.OutcomeUnknown("x"), "Neo.DatabaseError.Transaction.TransactionCommitFailed"),
        (errors.StorageFull("x"), "Neo.DatabaseError.Transaction.TransactionCommitFailed"),
        (errors.Internal("x"), "Neo.DatabaseError.General.UnknownError"),
        (errors.EngineFailed("x"), "Neo.DatabaseError.General.UnknownError"),
        (ValueError("x"), "Neo.DatabaseError.General.UnknownError"),
        (ProtocolViolation("x"), "Neo.ClientError.Request.Invalid"),
    ],
)
def test_every_error_has_a_status(error: Exception, code: str) -> None:
    assert map_error_to_failure_status(error).code == code
    assert build_failure_message_fields(error, (5, 6))["code"] == code
    described = build_failure_message_fields(error, (5, 7))
    assert described["neo4j_code"] == code
    assert len(described["gql_status"]) == 5
    assert described["description"].startswith("error: ")


def test_all_codes_are_known() -> None:
    kinds: list[type[KgserveError]] = [KgserveError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds:
        if kind.__module__ == "kgserve.errors" and kind.code not in {"internal", "invalid"}:
            error = kind.__new__(kind)
            KgserveError.__init__(error, "x")
            assert "UnknownError" not in map_error_to_failure_status(error).code, kind


@pytest.mark.parametrize("error", [errors.Internal("/secret/path"), RuntimeError("/secret/path")])
def test_defects_have_no_details(error: Exception) -> None:
    assert build_failure_message_fields(error, (5, 8))["message"] == INTERNAL_MESSAGE
    assert "secret" not in str(build_failure_message_fields(error, (5, 8)))
