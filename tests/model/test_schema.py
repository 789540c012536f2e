from model.schema import Field, RowSchema, plan_evolution

ITEM = Field("items", "RECORD", "REPEATED", fields=(Field("sku", "STRING"), Field("count", "INT64")))
CURRENT = RowSchema((Field("id", "INT64", "REQUIRED"), Field("name", "STRING", policy_tags=("a",)), ITEM))


def test_a_schema_is_the_same_after_its_json():
    assert RowSchema.from_json(CURRENT.to_json()) == CURRENT


def test_what_is_new_comes_last_and_nullable_and_nothing_is_refused():
    wanted = RowSchema(
        (
            Field("new", "DATE", "REQUIRED"),
            Field("ID", "INT64", description="now said"),
            Field("name", "STRING"),
            Field("items", "RECORD", "REPEATED", fields=(*ITEM.fields, Field("note", "STRING"))),
        ),
        "a table",
    )
    evolution = plan_evolution(CURRENT, wanted)
    assert evolution.refused == ()
    assert [(c.path, c.text) for c in evolution.changes] == [
        ("id", "REQUIRED becomes NULLABLE"),
        ("id", "its description changes"),
        ("name", "its policy tags change"),
        ("items.note", "is new: STRING NULLABLE"),
        ("new", "is new: DATE NULLABLE"),
        ("", "the table's description changes"),
    ]
    assert evolution.schema.names() == ["id", "name", "items", "new"]
    assert plan_evolution(evolution.schema, wanted).changes == ()


def test_a_column_that_is_gone_and_types_and_modes_that_changed_are_refused_each_with_its_path():
    wanted = RowSchema(
        (Field("id", "STRING", "REQUIRED"), Field("items", "RECORD", fields=(Field("sku", "STRING"),)))
    )
    refused = {fault.path: fault.text for fault in plan_evolution(CURRENT, wanted).refused}
    assert refused == {
        "id": "is INT64, but must be STRING",
        "name": "was STRING and is gone",
        "items": "is REPEATED, but must be NULLABLE",
        "items.count": "was INT64 and is gone",
    }


def test_a_schema_that_did_not_change_changes_nothing():
    evolution = plan_evolution(CURRENT, CURRENT)
    assert (evolution.schema, evolution.changes, evolution.refused) == (CURRENT, (), ())
