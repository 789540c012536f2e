"""The JSON shape of the audits of merges, as OpenAPI shows it."""

from pydantic import BaseModel

from reporting.view import MergeNight


class MergeAudits(BaseModel):
    """The results of ended merges by source, newest merge first. Dry runs are not listed."""

    nights: list[MergeNight]
