"""Google's reference engine as the judge of answers: what an expression or a query gives, as one line of text.

It needs the dependency group ``oracle``. The engine's Python wrapper loses timestamps, so the answer's own
protocol buffer is read.
"""

import json
from datetime import date, timedelta
from decimal import Context, Decimal
from typing import Any, Final

# What the engine can do and BigQuery has not: a moment there has microseconds.
_NOT_IN_BIGQUERY: Final = ("FEATURE_TIMESTAMP_NANOS", "FEATURE_TIMESTAMP_PICOS")
# Python rounds to 28 digits where it is not told otherwise; a NUMERIC has 38.
_EXACT: Final = Context(prec=80)
_EPOCH: Final = date(1970, 1, 1)


def keep_compiled() -> None:
    """Keep the compiled engine for the next start: compiling takes a minute, and minutes on a busy machine."""
    from wasmtime import Config
    from zetasql.core import wasm_client

    def cached() -> Config:
        config = Config()
        config.cache = True
        return config

    wasm_client.Config = cached


class Judge:
    """Evaluates queries that read no table; about 25 ms each."""

    def __init__(self) -> None:
        from zetasql import api, types
        from zetasql.core.exceptions import ZetaSQLError
        from zetasql.core.local_service import ZetaSqlLocalService
        from zetasql.wasi._pb2.zetasql.local_service import local_service_pb2 as service

        keep_compiled()
        self._error = ZetaSQLError
        self._service = service
        self._client = ZetaSqlLocalService().wasm_client
        language = types.LanguageOptions.maximum_features()
        language.product_mode = types.proto_model.ProductMode.PRODUCT_EXTERNAL
        for name in _NOT_IN_BIGQUERY:
            feature = getattr(types.LanguageFeature, name, None)
            if feature in language.enabled_language_features:
                language.enabled_language_features.remove(feature)
        options = types.AnalyzerOptions(language_options=language, default_timezone="UTC")
        builtins = types.ZetaSQLBuiltinFunctionOptions(language_options=language)
        self._options = options.to_proto()
        catalog = api.CatalogBuilder("c").with_builtin_functions(builtins).build().to_proto()
        registered = self._client.call_grpc_func(
            "ZetaSqlLocalService_RegisterCatalog",
            service.RegisterCatalogRequest(simple_catalog=catalog),
            service.RegisterResponse,
        )
        self._catalog = registered.registered_id

    def answer(self, sql: str) -> list[list[str]]:
        """Return the rows of a query, each value as text.

        Raises:
            JudgeError: the engine refuses it or fails.
        """
        request = self._service.EvaluateQueryRequest(
            sql=sql, options=self._options, registered_catalog_id=self._catalog
        )
        try:
            response = self._client.call_grpc_func(
                "ZetaSqlLocalService_EvaluateQuery", request, self._service.EvaluateQueryResponse
            )
        except self._error as exc:
            raise JudgeError(str(exc)) from exc
        except UnicodeDecodeError as exc:
            # The engine cuts long messages, also within a character.
            raise JudgeError("[OUT_OF_RANGE] a message that can't be read") from exc
        return [[render(cell) for cell in row.cell] for row in response.content.table_data.row]


class JudgeError(Exception):
    """The engine refuses the query or fails."""


def render(value: Any) -> str:  # noqa: C901, PLR0911, PLR0912 - one line a type
    """Return a value of the engine as text: NULL, true, 1, 1.5f, 1.5n, "text", b"6162", [1,2], (1,2) ..."""
    kind = value.WhichOneof("value")
    if kind is None:
        return "NULL"
    raw = getattr(value, kind)
    match kind:
        case "bool_value":
            return str(raw).lower()
        case "int64_value":
            return str(raw)
        case "double_value":
            return render_float(raw)
        case "string_value":
            return json.dumps(raw, ensure_ascii=False)
        case "bytes_value":
            return f'b"{raw.hex()}"'
        case "numeric_value":
            return render_numeric(Decimal(int.from_bytes(raw, "little", signed=True)).scaleb(-9, _EXACT))
        case "json_value":
            return f"json {raw}"
        case "date_value":
            return (_EPOCH + timedelta(days=raw)).isoformat()
        case "timestamp_value":
            return f"{raw.seconds * 10**6 + raw.nanos // 1000}us"
        case "datetime_value":
            return _datetime(raw.bit_field_datetime_seconds, raw.nanos)
        case "time_value":
            return f"{_clock(raw >> 30)}.{raw % 2**30 // 1000:06d}"
        case "array_value":
            return f"[{','.join(map(render, raw.element))}]"
        case "struct_value":
            return f"({','.join(map(render, raw.field))})"
        case _:
            return f"{kind} {raw}"


def render_float(value: float) -> str:
    return f"{value!r}f"


def render_numeric(value: Decimal) -> str:
    return f"{_EXACT.plus(value.normalize(_EXACT)):f}n"


def _clock(bits: int) -> str:
    return f"{bits >> 12 & 0x1F:02d}:{bits >> 6 & 0x3F:02d}:{bits & 0x3F:02d}"


def _datetime(bits: int, nanos: int) -> str:
    days = f"{bits >> 26:04d}-{bits >> 22 & 0xF:02d}-{bits >> 17 & 0x1F:02d}"
    return f"{days} {_clock(bits)}.{nanos // 1000:06d}"
