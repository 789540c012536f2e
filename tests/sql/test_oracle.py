"""Google's own analyzer as the judge: what functions give on the lake, and which queries it takes.

Values are recorded in oracle.json, so that they are compared on every machine. With the dependency group
``oracle``, REFEED_ORACLE=check asks the analyzer again (it takes minutes) and REFEED_ORACLE=record
writes what it says.
"""

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from sql.tables import parse_table_schema
from sql.validate import Parameter, Policy, QueryRefusedError, parse_parameters
from sql.verdict import judge_query
from tests.recipes import TABLES, read_recipes
from tests.sql.answers import ask
from tests.sql.judge import Judge, keep_compiled
from tests.sql.mutants import mutate, pieces

RECORD = Path(__file__).parent / "oracle.json"
VALUES: dict[str, str | None] = json.loads(RECORD.read_text())
MODE = os.environ.get("REFEED_ORACLE", "")
FREE = Policy("backup.messages", None, datetime(2024, 1, 10, 12, tzinfo=UTC), replay=False)
RECIPES = [recipe for recipe in read_recipes() if recipe.sql]
RECIPE_POLICY = Policy(
    "backup.messages",
    "shop",
    datetime(2026, 2, 1, tzinfo=UTC),
    extra_tables=tuple(text.partition("(")[0] for text in TABLES),
    schemas=tuple(parse_table_schema(text) for text in TABLES),
)
MUTANTS = int(os.environ.get("REFEED_FUZZ_MUTANTS", "2000"))
# BigQuery calls a table in backticks by its last name, and only its dry run knows a foreign table's columns.
UNKNOWN_TO_THE_ORACLE = ("Unrecognized name: messages", "not found inside")


def needs_oracle(test):
    """Skip a test where the oracle is not asked for; each of them asks it hundreds of times."""
    reason = "set REFEED_ORACLE=check and install the dependency group oracle; it takes minutes"
    return pytest.mark.skipif(not MODE, reason=reason)(pytest.mark.timeout(1800)(test))


def on_the_lake(expression, lake):
    """Return the value of an expression as text, as GoogleSQL casts it; "error" when it fails."""
    # A column in between keeps the gate from folding what it knows.
    query = judge_query(f"SELECT CAST({expression} AS STRING) AS x", {}, FREE)
    if query.lake_violations:
        pytest.skip(query.lake_violations[0].message)
    try:
        row = lake.execute(query.lake_sql, dict(query.lake_parameters) or None).fetchone()
    except duckdb.Error as exc:
        if isinstance(exc, duckdb.BinderException | duckdb.ParserException | duckdb.CatalogException):
            raise
        return "error"
    return None if row[0] is None else str(row[0])


@pytest.mark.parametrize("expression", VALUES)
def test_an_expression_gives_the_same_on_the_lake(expression, lake):
    assert on_the_lake(expression, lake) == VALUES[expression]


@pytest.fixture(scope="session")
def oracle():
    api = pytest.importorskip("zetasql.api", reason="the dependency group oracle is not installed")
    types = pytest.importorskip("zetasql.types")
    keep_compiled()
    kinds, make = types.TypeKind, api.type_factory.TypeFactory.create_simple_type
    language = types.LanguageOptions.maximum_features()
    language.product_mode = types.proto_model.ProductMode.PRODUCT_EXTERNAL
    builtins = types.ZetaSQLBuiltinFunctionOptions(language_options=language)
    text, moment = make(kinds.TYPE_STRING), make(kinds.TYPE_TIMESTAMP)
    factory = api.type_factory.TypeFactory
    attributes = factory.create_array_type(factory.create_struct_type([("key", text), ("value", text)]))
    columns = [("data", make(kinds.TYPE_BYTES)), ("attributes", attributes), ("message_id", text)]
    columns += [("publish_time", moment), ("topic", text), ("subscription", text), ("ordering_key", text)]
    columns += [("ingest_time", moment)]
    dead = [(name, kind) for name, kind in columns if name != "subscription"]
    dead += [("source", text), ("error_code", text)]
    staged = [("id", make(kinds.TYPE_INT64)), ("_topic", text), ("_message_id", text)]
    staged += [("ingest_time", moment)]

    def table(name, columns=columns):
        built = api.TableBuilder(name).build()
        built.column = [types.SimpleColumn(name=n, type=t) for n, t in columns]
        for pseudo, kind in (("_PARTITIONTIME", moment), ("_PARTITIONDATE", make(kinds.TYPE_DATE))):
            built.column.append(types.SimpleColumn(name=pseudo, type=kind, is_pseudo_column=True))
        return built

    def nested(name, tables, catalogs=None):
        return types.SimpleCatalog(name=name, table=tables, catalog=catalogs or [])

    catalog = api.CatalogBuilder("c").with_builtin_functions(builtins).build()
    wanted = api.TableBuilder("wanted").add_column("id", kinds.TYPE_STRING).build()
    backup = nested("backup", [table("messages"), table("dead_letters", dead)])
    catalog.catalog = [
        backup,
        nested("shop", [], [backup]),
        nested("shop.backup", [table("messages")]),
        nested("ops", [wanted]),
        nested("staging", [table("orders", staged)]),
    ]
    catalog.table = [table("backup.messages"), table("shop.backup.messages")]

    def analyze(sql, parameters=None):
        options = types.AnalyzerOptions(language_options=language, default_timezone="UTC")
        options.allow_undeclared_parameters = bool(parameters)
        return api.Analyzer(options, catalog).analyze_statement(sql)

    return analyze


def known_to_the_oracle(all_cases):
    # BigQuery calls a table in backticks by the last part of its name, the analyzer does not.
    return [case for case in all_cases["accept"] if case.name != "everything with the project in backticks"]


@needs_oracle
def test_the_recorded_values_are_the_oracles():
    judge = Judge()
    texts = {expression: ask(judge, f"SELECT CAST({expression} AS STRING)") for expression in VALUES}
    values = {"NULL": None, "error": "error", "invalid": "invalid"}
    found = {key: values[text] if text in values else json.loads(text) for key, text in texts.items()}
    if MODE == "record":
        RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == VALUES


@needs_oracle
def test_every_accepted_query_is_one_for_the_oracle_too(oracle, all_cases, policy):
    for case in known_to_the_oracle(all_cases):
        statement = oracle(case.text, {name: body["type"] for name, body in case.parameters.items()})
        query = judge_query(case.text, parse_parameters(case.parameters), policy)
        theirs = [column.name.lower() for column in statement.output_column_list]
        assert theirs == [column.name.lower() for column in query.output], case
        kinds = [str(column.column.type).replace("DOUBLE", "FLOAT64") for column in statement.output_column_list]
        ours = [column.type for column in query.output]
        assert [k for k in kinds if "<" not in k] == [
            o for k, o in zip(kinds, ours, strict=True) if "<" not in k
        ], case


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_the_gate_lets_a_recipe_through_to_bigquery(recipe):
    query = judge_query(recipe.sql or "", parse_parameters(recipe.parameters), RECIPE_POLICY)
    assert not {"topic", "publish_time"} & set(query.missing_columns)


@needs_oracle
def test_every_recipe_is_one_for_the_oracle_too(oracle):
    for recipe in RECIPES:
        statement = oracle(recipe.sql or "", {name: body["type"] for name, body in recipe.parameters.items()})
        query = judge_query(recipe.sql or "", parse_parameters(recipe.parameters), RECIPE_POLICY)
        theirs = [column.name for column in statement.output_column_list]
        assert theirs == [column.name for column in query.output], recipe.title


@needs_oracle
def test_what_the_oracle_refuses_the_gate_refuses(oracle, all_cases, policy):
    cases = known_to_the_oracle(all_cases)
    words = [word for case in cases for word in case.text.split()]
    refused = 0
    for case in cases:
        if case.parameters:
            continue
        parts = case.text.split()
        for place in range(0, len(parts), 5):
            text = " ".join([*parts[:place], words[(place * 31) % len(words)], *parts[place + 1 :]])
            try:
                judge_query(text, {}, policy)
            except QueryRefusedError:
                refused += 1
                continue
            oracle(text)
    assert refused > 100


@needs_oracle
def test_no_mutant_is_accepted_that_the_oracle_refuses(oracle, all_cases, policy):
    seeds = [words for cases in all_cases.values() for case in cases if (words := pieces(case.text))]
    accepted, disagreed = 0, []
    for number in range(MUTANTS):
        text = mutate(seeds, random.Random(number))
        try:
            judge_query(text, {"x": Parameter("STRING", "x")}, policy)
        except QueryRefusedError:
            continue
        accepted += 1
        try:
            oracle(text, {"x": "STRING"})
        except Exception as exc:  # noqa: BLE001 - the analyzer's errors have no base class of their own
            if not any(known in str(exc) for known in UNKNOWN_TO_THE_ORACLE):
                disagreed.append(f"{exc}: {text}")
    assert not disagreed
    assert accepted > MUTANTS / 50
