"""SET statements with literals and expressions, whose stored values are read without the engine."""

from __future__ import annotations

from collections.abc import Iterator

from tests.cypher.differential.comparison import Result
from tests.cypher.differential.generator import GeneratedStatement, Generator
from tests.cypher.differential.product import ProductStore
from tests.cypher.reference import tree as t
from tests.cypher.reference.interpreter import Answer, Interpreter, same
from tests.cypher.reference.text import render
from tests.cypher.reference.values import CypherError, UnmodelledFeature, read_parameter

_TEXT_PROPERTIES = ("content", "content", "summary", "name")
_NODE = "n1"


def compare_writes(store: ProductStore, count: int, seed: int) -> Iterator[tuple[GeneratedStatement, Result]]:
    """Yield the verdict on each statement; the store keeps the changes."""
    generator = Generator(seed)
    for number in range(count):
        name = _TEXT_PROPERTIES[number % len(_TEXT_PROPERTIES)]
        value, parameters = generator.text_of_node("n")
        yield _compare(store, name, value, parameters)


def _compare(
    store: ProductStore, name: str, value: t.Expression, parameters: dict[str, object]
) -> tuple[GeneratedStatement, Result]:
    node = t.NodePattern("n", ("Entity",), (("id", t.Literal(_NODE)),))
    match = t.Match((t.PathPattern((node,)),))
    asked = t.Query((match, t.Projection("RETURN", (t.Item(value, "c"),))))
    target = t.Property(t.Variable("n"), name)
    made = GeneratedStatement(t.Query((match, t.SetProperties((t.Assignment(target, value),)))), parameters)
    text = render(made.statement)
    expected: Answer | str
    try:
        expected = Interpreter(store.graph(), {name: read_parameter(each) for name, each in parameters.items()}).run(
            asked
        )
    except CypherError as error:
        expected = f"an error: {error}"
    except UnmodelledFeature:
        expected = ""
    outcome = store.ask(text, parameters, writes=True)
    if outcome.error:
        verdict = "lost" if outcome.is_lost else "refused" if isinstance(expected, Answer) else "agreed on an error"
        return made, Result(verdict, text, outcome, expected)
    outcome.rows = [[store.stored(_NODE, name)]]
    if not isinstance(expected, Answer):
        return made, Result("no error" if expected else "not modelled", text, outcome, expected)
    is_right = same(expected.rows[0][0] or "", outcome.rows[0][0] or "")
    return made, Result("agreed" if is_right else "values differ", text, outcome, expected)
