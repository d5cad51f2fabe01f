"""Failures: errors as status codes of Neo4j, and as GQL status objects for clients that understand them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kgserve.errors import (
    Internal,
    InvalidInput,
    KgserveError,
    NoStore,
    OutcomeUnknown,
)
from kgserve.server.bolt.handshake import ProtocolVersion
from kgserve.server.bolt.packstream import ProtocolViolation

GQL_FAILURES_SINCE: ProtocolVersion = (5, 7)
INTERNAL_MESSAGE = "internal error; the server's log has details"


class InvalidBookmark(InvalidInput):
    """A bookmark is not one of this server's, or names commits that it does not have."""


class RequestInvalidInState(KgserveError):
    """A request is valid, but not in the current state of the connection or transaction."""

    code = "invalid"


class Neo4jFailureStatus(msgspec.Struct, frozen=True):
    """Status of a failure: the code of Neo4j, and the GQL status with its description."""

    code: str
    gql_status: str
    description: str

    @property
    def classification(self) -> str:
        """Class of the failure: whose fault it is, or that it is temporary."""
        return _CLASSIFICATIONS[self.code.split(".")[1]]


_CLASSIFICATIONS = {
    "ClientError": "CLIENT_ERROR",
    "TransientError": "TRANSIENT_ERROR",
    "DatabaseError": "DATABASE_ERROR",
}

_SYNTAX = Neo4jFailureStatus(
    "Neo.ClientError.Statement.SyntaxError",
    "42001",
    "error: syntax error or access rule violation - invalid syntax",
)
_TYPE = Neo4jFailureStatus("Neo.ClientError.Statement.TypeError", "22G03", "error: data exception - invalid value type")
_ARGUMENT = Neo4jFailureStatus("Neo.ClientError.Statement.ArgumentError", "22000", "error: data exception")
_ARITHMETIC = Neo4jFailureStatus(
    "Neo.ClientError.Statement.ArithmeticError", "22003", "error: data exception - numeric value out of range"
)
_PARAMETER = Neo4jFailureStatus(
    "Neo.ClientError.Statement.ParameterMissing", "42N51", "error: syntax error or access rule violation"
)
_CONSTRAINT = Neo4jFailureStatus(
    "Neo.ClientError.Schema.ConstraintValidationFailed", "22000", "error: data exception - constraint violation"
)
_DELETED = Neo4jFailureStatus("Neo.ClientError.Statement.EntityNotFound", "22000", "error: data exception")
_PROCEDURE = Neo4jFailureStatus(
    "Neo.ClientError.Procedure.ProcedureNotFound",
    "42001",
    "error: syntax error or access rule violation - invalid syntax",
)
_UNKNOWN = Neo4jFailureStatus(
    "Neo.DatabaseError.General.UnknownError", "50N42", "error: general processing exception - unexpected error"
)
_PROTOCOL = Neo4jFailureStatus(
    "Neo.ClientError.Request.Invalid", "08N06", "error: connection exception - protocol error"
)

_BY_CLASS: dict[type[KgserveError], Neo4jFailureStatus] = {
    ProtocolViolation: _PROTOCOL,
    RequestInvalidInState: Neo4jFailureStatus(
        "Neo.ClientError.Request.Invalid", "25000", "error: invalid transaction state"
    ),
    InvalidBookmark: Neo4jFailureStatus(
        "Neo.ClientError.Transaction.InvalidBookmark", "22000", "error: data exception - invalid bookmark"
    ),
    NoStore: Neo4jFailureStatus(
        "Neo.ClientError.Database.DatabaseNotFound", "22000", "error: data exception - database not found"
    ),
    OutcomeUnknown: Neo4jFailureStatus(
        "Neo.DatabaseError.Transaction.TransactionCommitFailed",
        "40003",
        "error: transaction rollback - statement completion unknown",
    ),
}

_BY_CODE = {
    "kind_not_allowed": _CONSTRAINT,
    "unauthenticated": Neo4jFailureStatus(
        "Neo.ClientError.Security.Unauthorized",
        "42NFF",
        "error: syntax error or access rule violation - permission/access denied",
    ),
    "forbidden": Neo4jFailureStatus(
        "Neo.ClientError.Security.Forbidden",
        "42NFF",
        "error: syntax error or access rule violation - permission/access denied",
    ),
    "not_found": _DELETED,
    "timeout": Neo4jFailureStatus(
        "Neo.ClientError.Transaction.TransactionTimedOut", "25000", "error: invalid transaction state"
    ),
    "conflict": Neo4jFailureStatus("Neo.TransientError.Transaction.Outdated", "40000", "error: transaction rollback"),
    "conflict_manual": _CONSTRAINT,
    "idempotency_key_reused": _CONSTRAINT,
    "gone": Neo4jFailureStatus(
        "Neo.ClientError.Transaction.InvalidBookmark", "22000", "error: data exception - invalid bookmark"
    ),
    "too_large": Neo4jFailureStatus(
        "Neo.ClientError.General.TransactionOutOfMemoryError", "22000", "error: data exception - limit exceeded"
    ),
    "unsupported": _ARGUMENT,
    "limited": Neo4jFailureStatus(
        "Neo.TransientError.Request.NoThreadsAvailable", "50N00", "error: general processing exception"
    ),
    "elsewhere": Neo4jFailureStatus("Neo.ClientError.Cluster.NotALeader", "08000", "error: connection exception"),
    "unavailable": Neo4jFailureStatus(
        "Neo.TransientError.General.DatabaseUnavailable", "08000", "error: connection exception"
    ),
    "storage_full": Neo4jFailureStatus(
        "Neo.DatabaseError.Transaction.TransactionCommitFailed", "40000", "error: transaction rollback"
    ),
}

_AT_POSITION = re.compile(r"\bat line \d+, column \d+")
_NAME_TAKEN = re.compile(r"\bexists\b")
"""Conflicts that another attempt does not solve."""
_SPECIFIC_MESSAGES: tuple[tuple[re.Pattern[str], Neo4jFailureStatus], ...] = (
    (re.compile(r"^there is no procedure "), _PROCEDURE),
    (re.compile(r"^no value is given for \$|^parameters? .*\b(missing|not given)\b"), _PARAMETER),
    (re.compile(r"\bexists? already\b|\balready exists?\b|\bstill has\b|\bonly one edge per\b"), _CONSTRAINT),
    (re.compile(r"\bwas deleted\b"), _DELETED),
)
"""Messages that are specific enough to count even with a position; without one, all of them do."""
_MESSAGES: tuple[tuple[re.Pattern[str], Neo4jFailureStatus], ...] = (
    (re.compile(r"\bzero\b|\boverflow|\b64[- ]bit|\bout of range"), _ARITHMETIC),
    (re.compile(r"\btypes?\b|\b(expects?|needs?|must be|takes?|is not|has no) an? \w+|\bcannot (be|combine)\b"), _TYPE),
)


def map_error_to_failure_status(error: Exception, *, is_executing: bool = False) -> Neo4jFailureStatus:
    """Return the status of an error; ``is_executing`` tells that the statement had been accepted before."""
    if not isinstance(error, KgserveError) or isinstance(error, Internal):
        return _UNKNOWN
    for kind in type(error).__mro__:
        if kind in _BY_CLASS:
            return _BY_CLASS[kind]
    if error.code == "conflict" and _NAME_TAKEN.search(error.message):
        return _CONSTRAINT
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    if error.code != "invalid":
        return _UNKNOWN
    is_syntax = not is_executing and _AT_POSITION.search(error.message)
    patterns = _SPECIFIC_MESSAGES if is_syntax else (*_SPECIFIC_MESSAGES, *_MESSAGES)
    found = (status for pattern, status in patterns if pattern.search(error.message))
    return next(found, _SYNTAX if is_syntax else _ARGUMENT)


def build_failure_message_fields(
    error: Exception, version: ProtocolVersion, *, is_executing: bool = False
) -> dict[str, Any]:
    """Return the fields of a FAILURE message. Defects of the server are reported without details."""
    status = map_error_to_failure_status(error, is_executing=is_executing)
    message = INTERNAL_MESSAGE
    if isinstance(error, KgserveError) and not isinstance(error, Internal):
        message = error.message
    if version < GQL_FAILURES_SINCE:
        return {"code": status.code, "message": message}
    return {
        "neo4j_code": status.code,
        "message": message,
        "gql_status": status.gql_status,
        "description": f"{status.description}. {message}",
        "diagnostic_record": {
            "OPERATION": "",
            "OPERATION_CODE": "0",
            "CURRENT_SCHEMA": "/",
            "_classification": status.classification,
        },
    }
