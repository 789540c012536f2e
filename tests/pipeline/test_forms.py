"""What native code reads is what the decoder that reads message by message makes of the same messages."""

import gzip
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from connectors.columns import arrow_schema
from pipeline import forms, inferred
from pipeline.decode import Decoder
from pipeline.inferred import InferredDecoder, learn
from pipeline.layout import KnownField, Layout
from pipeline.mapping import map_message
from pipeline.registry import Source
from pipeline.schema import message_schema
from pipeline.sharing import SharedObjects
from tests.pipeline.conftest import messages
from tests.pipeline.mutated import each_odd, messages_of
from tests.pipeline.test_conformance import CASES

WEBHOOKS = Path(__file__).parents[3] / "shared" / "data" / "github_webhooks.ndjson.gz"
NEVER = 1 << 60
ROUNDS = int(os.environ.get("REFEED_MUTATED_ROUNDS", "20"))
TEXTS = ('"a"', '"b c"', '""', '"\\u00e9"', "null")
WHOLE = ("1", "-5", "0", '"7"', "null")
TIMES = ('"2024-03-01T12:00:00Z"', '"2024-03-01T12:00:00.5+02:00"')
POINT = {"x": ("1.5", "2", "-0.0"), "y": ("0", '"NaN"', "1e3")}
KINDS = {
    "aSint32": WHOLE,
    "aUint64": ("1", '"18"', "9223372036854775807"),
    "largeUint64": ("5", '"18446744073709551615"'),
    "numberAsText": WHOLE,
    "cents": ("199", '"5"'),
    "optionalInt32": WHOLE,
    "optionalDefault": TEXTS,
    "choiceText": TEXTS,
    "colour": ('"RED"', "2", "7"),
    "colourName": ('"RED"', "1"),
    "colours": [('"RED"', "2")],
    "at": TIMES,
    "times": [TIMES],
    "took": ('"1.5s"', '"3s"'),
    "mask": ('"a,b"',),
    "wrappedString": TEXTS,
    "wrapped_int64": WHOLE,
    "wrappedBool": ("true", "false", "null", '"true"'),
    "wrappedDouble": ("1", "1.5", "null", '"-Infinity"'),
    "wrappedBytes": ('"AAE="', '""'),
    "document": ('"{}"',),
    "numberText": ('"1.5"', '""'),
    "swapped": ('"12-5"', '"a"'),
    "thePoint": POINT,
}
ORDER = "order.proto:Order"
LINE = {"sku": TEXTS, "count": ("1", '"2"', "0"), "sizes": [("1", "2")]}
PURCHASE = {
    "id": ("1", '"12345678901"'),
    "customerName": TEXTS,
    "lines": [LINE],
    "tags": [('"a"', '"ab"', '"b"')],
    "byMail": TEXTS,
    "secret": TEXTS,
    "single": ("1.5", "2", "1e10"),
    "isPaid": ("true", "false"),
    "box": {"inner": LINE, "lines": [LINE], "first_name": TEXTS, "a": ("1", "null")},
    "local": ('"2024-03-01 12:00:00"', '""'),
    "raw": ('"YWI="',),
    "prices": [("1", "2.5", "-0.0", "1e-7")],
}
# Fields and their texts, as an inferred source's messages have them.
EVENT = {
    "id": ("1", "2", "9007199254740992"),
    "big": ("9007199254740993", "-9223372036854775808", "5"),
    "price": ("1", "1.5", "-0", "1e2"),
    "ok": ("true", "false"),
    "name": TEXTS,
    "only": ("1.5", "null"),
    "a b.c": TEXTS,
    "tags": [('"a"', '"b"')],
    "numbers": [("1", "2")],
    "prices": [("1", "1.5")],
    "nothing": ("null", "[]", "{}"),
    "none": ("null",),
    "at": {"x": ("1", "null"), "deep": {"y": TEXTS, "z": [("true",)], "none": ("null", "[]")}, "void": ("{}",)},
    "hollow": {"x": ("1",), "sku": ("null",)},
    "lines": [{"sku": ('"a"', '"b"'), "n": ("1", "1.5"), "parts": [{"k": ("1",)}], "o": {"p": ("1",)}}],
}


def told(decoded):
    """Return all that a batch says, but for the time at which it was made."""
    rows = decoded.rows.drop_columns("ingest_time")
    return (
        rows.schema,
        list(map(repr, rows.to_pylist())),
        decoded.indices,
        decoded.refused,
        decoded.unknown,
        decoded.missing,
    )


def told_of_types(found):
    """Return all that a batch of an inferred source says, in its order."""
    tables = [(kind.name, kind.number, *told(decoded)) for kind, decoded in found.tables]
    return tables, found.refused, found.unfit, [(key, one.to_json()) for key, one in found.variations.items()]


class Pair:
    """Two decoders of the same messages, of which one reads all of them one by one."""

    def __init__(self, monkeypatch):
        self._patch = monkeypatch
        self.read = self.held = 0
        real = forms.Form.read

        def read(form, payloads):
            found = real(form, payloads)
            self.read += len(payloads) - len(found.left)
            self.held += len(found.held)
            assert not form.is_off
            return found

        monkeypatch.setattr(forms.Form, "read", read)
        # It goes on trying, with small objects too.
        monkeypatch.setattr(forms, "REST", 0)
        monkeypatch.setattr(forms, "FEWEST_SHARED", 1)

    def both(self, do):
        """Return what ``do`` says without forms, and with them for any number of messages."""
        self._patch.setattr(forms, "FEWEST", NEVER)
        law = do("law")
        self._patch.setattr(forms, "FEWEST", 1)
        return law, do("native")


@pytest.fixture
def pair(monkeypatch):
    return Pair(monkeypatch)


def open_decoder(message, **options):
    columns = arrow_schema(message_schema(message))
    return Decoder(map_message(message), columns, version="v", topic="orders", token="t", **options)


@pytest.fixture
def compare(pair, describe):
    """Return what opens two decoders of a message and returns what compares their answers to payloads."""

    def open_two(place):
        file, _, name = place.partition(":")
        message = describe(file).message(name)
        decoders = {name: open_decoder(message, max_bytes=20_000) for name in ("law", "native")}

        def compare(*payloads):
            batch = messages(*payloads)
            law, native = pair.both(lambda name: told(decoders[name].decode(batch)))
            assert law == native, payloads[1]

        return compare

    return open_two


@pytest.mark.parametrize(
    ("text", "fields", "share"), [("kinds.proto:kinds.Everything", KINDS, 0.5), (ORDER, PURCHASE, 0.1)]
)
def test_messages_of_a_schema_are_the_same_rows_and_refusals(pair, compare, text, fields, share):
    compare_payloads = compare(text)
    for seed in range(ROUNDS):
        dice = random.Random(seed)
        compare_payloads(*messages_of(dice, fields, 40, odd=dice.choice((0, 0.02, 0.1, 0.5))))
    assert pair.read > share * 40 * ROUNDS


@pytest.mark.parametrize(("text", "fields"), [("kinds.proto:kinds.Everything", KINDS), (ORDER, PURCHASE)])
def test_any_value_of_any_field_is_the_same_row_or_refusal(pair, compare, text, fields):
    # No message with these is fine.
    fine = {name: kind for name, kind in fields.items() if name not in ("local", "choiceText")}
    compare_payloads = compare(text)
    for payloads in each_odd(fine):
        compare_payloads(*payloads)
    assert pair.read > 300


def test_the_conformance_suite_s_cases_are_the_same_rows_and_refusals(pair, compare):
    compare("conformance.proto:Conformance")(b"{}", *[text.encode() for _, text, _ in CASES])
    assert pair.read > 50


def reordered(dice, value):
    """Return a JSON value whose objects have their names in another order."""
    if isinstance(value, dict):
        return {name: reordered(dice, value[name]) for name in dice.sample(list(value), len(value))}
    return [reordered(dice, child) for child in value] if isinstance(value, list) else value


def infer(pair, source, batches, *, learning, max_bytes=20_000):
    """Compare what an inferred source says of each batch; it learns of the first ones, ``learning`` of them."""
    types = {"law": [], "native": []}
    decoders = {}

    def decode(name, batch):
        if name not in decoders:
            decoders[name] = InferredDecoder(source, types[name], secret="s", max_bytes=max_bytes)
        found = decoders[name].decode(batch)
        learned = learn(source, types[name], list(found.variations.values()))
        if number < learning and learned != types[name]:
            types[name] = learned
            del decoders[name]
        return told_of_types(found), learned

    for number, batch in enumerate(batches):
        law, native = pair.both(lambda name: decode(name, batch))  # noqa: B023  called at once
        assert law == native, number


SOURCE = Source("s", "topic", "sub", "staging.s", "reporting.s", "default", "plain")


@pytest.mark.parametrize(("seed", "most"), [*((seed, 1000) for seed in range(ROUNDS * 2 // 5)), (8, 3), (9, 3)])
def test_messages_of_an_inferred_source_are_the_same_rows_variations_and_prototypes(pair, monkeypatch, seed, most):
    monkeypatch.setattr(inferred, "MAX_VARIATIONS", most)
    dice = random.Random(seed)
    # What is learned from is not odd, so that the columns stay what they are meant to be.
    first = [messages_of(dice, EVENT, 40, odd=0) for _ in range(3)]
    looks = [dice.choice(first[0]) for _ in range(8)]
    later = [
        [
            *dice.choices(looks, k=30),
            *(
                json.dumps(reordered(dice, json.loads(look)), separators=(",", ":")).encode()
                for look in dice.choices(looks, k=4)
            ),
            *messages_of(dice, EVENT, 3, odd=0),
            *messages_of(dice, EVENT, 3, odd=dice.choice((0, 0.1, 1))),
        ]
        for _ in range(6)
    ]
    for payloads in later:
        dice.shuffle(payloads)
    infer(pair, SOURCE, [messages(*payloads) for payloads in (*first, *later)], learning=3)
    assert pair.read > 15
    assert pair.held or most == 3


def wide_fields(dice, depth=0, letter="n"):
    """Return fields as webhooks have them: many, nested, and of few names that come again at other places."""
    nothing = ("null", "[]", "{}")
    kinds = [TEXTS, TEXTS, ("1", "2"), ("true",), ("1.5",), nothing, nothing[: depth + 1], [TEXTS[:3]]]
    fields = {f"{letter}{number}": dice.choice(kinds) for number in dice.sample(range(30), 12)}
    if depth < 2:
        for number in dice.sample(range(8), 3):
            fields[f"r{letter}{number}"] = wide_fields(dice, depth + 1, letter)
        fields[f"l{dice.randrange(3)}"] = [wide_fields(dice, depth + 1, dice.choice(("e", "e", letter)))]
    return fields


def varied(dice, value):
    """Return a JSON value with other texts and numbers, and with lists of other lengths."""
    if isinstance(value, dict):
        return {name: varied(dice, child) for name, child in value.items()}
    if isinstance(value, list):
        return [varied(dice, child) for child in value * dice.choice((1, 1, 1, 2))]
    return f"{value}{dice.randrange(100)}" if type(value) is str else value


@pytest.mark.parametrize("seed", range(4))
def test_wide_messages_of_an_inferred_source_are_the_same_rows(pair, seed):
    dice = random.Random(seed)
    fields = wide_fields(dice)
    looks = [json.loads(text) for text in messages_of(dice, fields, 8, odd=0)]
    gaps = dice.choice((None, (",", ":")))

    def batch():
        made = [varied(dice, look) for look in dice.choices(looks, k=30)]
        made += [reordered(dice, look) for look in dice.choices(looks, k=4)]
        return [json.dumps(message, separators=gaps).encode() for message in made]

    batches = [messages(*[json.dumps(look).encode() for look in looks])] * 2
    infer(pair, SOURCE, [*batches, *(messages(*batch()) for _ in range(4))], learning=2)
    assert pair.read > 10


@pytest.mark.parametrize(
    ("known", "same_order", "other_order"),
    [
        # The names in a list, where they have a value, are no names of fields that say nothing.
        (
            '{"n":null,"l":[{"m":1}],"m":[]}',
            '{"n":null,"l":[{"m":2},{"m":3}],"m":[]}',
            '{"m":[],"l":[{"m":2}],"n":null}',
        ),
        ('{"a":{"n":null},"b":{"n":null}}', '{"a":{"n":null},"b":{"n":null}}', '{"b":{"n":null},"a":{"n":null}}'),
        ('{"a":{"b":{"n":null},"n":null}}', '{"a":{"b":{"n":null},"n":null}}', '{"a":{"n":null,"b":{"n":null}}}'),
        ('{"k":1,"a":{"k":null},"n":[]}', '{"k":null,"a":{"k":null},"n":[]}', '{"a":{"k":null},"n":[],"k":1}'),
    ],
)
def test_fields_that_say_nothing_are_known_by_their_order(pair, known, same_order, other_order):
    filled = {"a": {"b": {"x": 1}, "x": 1}, "b": {"x": 1}}
    first = [json.dumps(filled).encode(), known.encode()]
    later = [same_order.encode(), other_order.encode(), known.encode()]
    infer(pair, SOURCE, [messages(*first)] * 3 + [messages(*later)] * 4, learning=1)
    assert pair.read > 6


@pytest.mark.skipif(not WEBHOOKS.exists(), reason="the webhook payloads are not beside the project")
def test_real_webhooks_are_the_same_rows(pair):
    texts = [json.loads(line) for line in gzip.decompress(WEBHOOKS.read_bytes()).splitlines()[::3]]
    payloads = [json.dumps(text["data"]).encode() for text in texts]
    kinds = [{"type": text["attributes"]["event"]} for text in texts]
    each = [messages(data, attributes=kind) for data, kind in zip(payloads, kinds, strict=True)]
    batch = pa.Table.from_batches(each).combine_chunks().to_batches()[0]
    source = replace(SOURCE, event_type_attribute="type")
    infer(pair, source, [batch] * 5, learning=2, max_bytes=1_000_000)
    # The last batch is read by the form, but for messages with a JSON column or two kinds of value in one.
    assert pair.read > 60


@pytest.mark.parametrize("most", [1000, 3])
def test_any_value_of_any_field_of_an_inferred_source_is_the_same(pair, monkeypatch, most):
    monkeypatch.setattr(inferred, "MAX_VARIATIONS", most)
    dice = random.Random(1)
    first = messages_of(dice, EVENT, 60, odd=0)
    later = [[*first[:4], *payloads] for payloads in each_odd(EVENT)]
    infer(pair, SOURCE, [messages(*payloads) for payloads in (first, first, first, *later)], learning=2)
    assert pair.read > 700


def bodies(*numbers):
    return [f'{{"id":{number},"customerName":"a"}}'.encode() for number in numbers]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (b'{"id":1,"id":2}', 4),
        (b'{"id":1,"id" :2}', 4),
        (b'{"id":1,"customerName":":a","id" :2}', 4),
        (b'{"id":1,"lines":[{"sku":"a"},{"sku":"b","sku":"c"}]}', 4),
        (b'{"id":9223372036854775808}', 4),
        (b'{"customerName":"a"}', 4),
        (b'{"id":1,"byMail":"a","byPhone":2}', 4),
        (b'{"id":1,"customerName":"a","customer_name":"b"}', 4),
        (b'{"id":1,"stock":{"a":1}}', 4),
        (b'{"id":1,"local":"yesterday"}', 4),
        (b'{"id":1,"box":{"lines":[{"sku":"a","count":"x"}]}}', 4),
        # These only look odd.
        (b'{"id":1,"customerName":"a\\":1"}', 5),
        (b' {"id": 1,\n"customerName": "a :)"}\n', 5),
        (b'{"id":"1"}', 5),
    ],
)
def test_a_message_that_does_not_fit_is_the_decoder_s_and_those_around_it_are_not(pair, compare, text, read):
    compare(ORDER)(*bodies(1, 2, 3), text, *bodies(4))
    assert pair.read == read


def test_where_most_messages_do_not_fit_the_next_ones_are_not_tried(describe, monkeypatch):
    decoder = open_decoder(describe("order.proto").message("Order"))
    fit = messages(*bodies(*range(forms.FEWEST)))
    tried = []
    real = forms.Form._read
    monkeypatch.setattr(forms.Form, "_read", lambda form, texts: tried.append(len(texts)) or real(form, texts))
    decoder.decode(messages(*[b'{"id":1,"stock":{}}'] * forms.FEWEST))
    for _ in range(forms.REST + 2):
        assert decoder.decode(fit).rows.num_rows == forms.FEWEST
    assert len(tried) == 3


def test_equal_objects_are_read_once_a_batch_and_looked_up_no_more_when_few_are_equal(pair, monkeypatch):
    def event(number, shop):
        return json.dumps({"id": number, "shop": {"id": shop, "name": f"{shop} {'x' * 10_000}"}}).encode()

    asked, parsed = [], []
    read, share = SharedObjects.read, SharedObjects.share
    monkeypatch.setattr(SharedObjects, "read", lambda objects, text: asked.append(text) or read(objects, text))
    monkeypatch.setattr(SharedObjects, "share", lambda objects, one: parsed.append(one) or share(objects, one))
    lesson, equal = messages(event(0, 0)), messages(*[event(number, 0) for number in range(40)])
    infer(pair, SOURCE, [lesson, lesson, equal], learning=1)
    assert (len(asked), len(parsed)) == (41, 43)
    others = messages(*[event(number, number) for number in range(110)])
    infer(pair, SOURCE, [lesson, lesson, others, others, others], learning=1)
    assert len(asked) == 41 + 111
    assert pair.read > 200


def test_an_object_that_does_not_fit_does_not_count_as_one_that_is_new():
    objects = Layout([KnownField("n", ("n",), int)]).shared
    for _ in range(3):
        with pytest.raises(msgspec.DecodeError):
            objects.read(b'{"n":"a"}')
    assert objects.forget() == (27, 0)


def test_a_shared_object_that_is_null_empty_or_missing_is_what_the_decoder_makes_of_it(pair):
    texts = [b'{"id":1,"shop":{"id":1,"name":"a"}}', b'{"id":2,"shop":null}', b'{"id":3,"shop":{}}', b'{"id":4}']
    batch = messages(*texts * 10)
    infer(pair, SOURCE, [batch, batch, batch], learning=1)
    assert pair.read == 40


def test_a_value_without_a_cell_blames_all_messages_with_its_object():
    shop = Layout([KnownField("n", ("n",), int, is_native=True)])
    layout = Layout([KnownField("shop", ("shop",), layout=shop, are_shared=True)])
    columns = [pa.field("shop", pa.struct([pa.field("n", pa.int8())]))]
    form = forms.Form(lambda *_: layout, columns, max_bytes=100)
    texts = [b'{"shop":{"n":1}}', b'{"shop":{"n":300}}', b'{"shop":null}']
    found = form.read(texts * 8)
    assert found.left == [place for place in range(24) if place % 3 == 1]
    assert found.columns[0].to_pylist() == [{"n": 1}, None] * 8


def test_a_fault_of_native_code_leaves_all_messages_to_the_decoder_and_its_log_has_none_of_them(capsys):
    def fail(*_):
        raise MemoryError("a fault")

    form = forms.Form(fail, [], max_bytes=100)
    texts = [b'{"card":"4111"}'] * forms.FEWEST
    for _ in range(2):
        assert list(form.read(texts).left) == list(range(len(texts)))
    log = capsys.readouterr().out
    assert log.count("MemoryError: a fault") == 1
    assert "4111" not in log


def test_fields_that_say_nothing_are_unknown_in_the_order_of_their_message(pair):
    first = b'{"id":1,"a":{"x":1,"n":null},"n":[],"m":{}}'
    later = [b'{"id":2,"a":{"x":2,"n":null},"n":[],"m":{}}'] * 3 + [b'{"m":{},"n":[],"id":3,"a":{"n":null,"x":3}}']
    infer(pair, SOURCE, [messages(first), messages(first), messages(first), messages(*later)], learning=1)
    assert pair.read == 3


@pytest.mark.parametrize("name", [r"a\n", r"a\u0001", r"a\"", r"a\\", r"\ud800", "", "é", "a.b"])
def test_any_name_of_a_field_is_read(pair, name):
    for values in (("1", "2", "3"), ("null", "null", "null"), ("null", "[]", "1")):
        batches = [messages(*[f'{{"{name}":{value},"id":1}}'.encode()] * 20) for value in values * 2]
        infer(pair, SOURCE, batches, learning=2)


def test_a_fault_in_the_form_leaves_the_messages_to_the_decoder(describe, monkeypatch):
    decoder = open_decoder(describe("order.proto").message("Order"))
    monkeypatch.setattr(Layout, "columns", None)
    for _ in range(2):
        assert decoder.decode(messages(*bodies(*range(20)))).rows.num_rows == 20
