"""Geography and distances: allowed for their own sake, none of them known to the lake's engine."""

from sql.datatypes import SqlType, array_of
from sql.functions.registry import Table

TABLE = Table()
GEOGRAPHY = SqlType("GEOGRAPHY")

for _name in (
    "ST_AREA", "ST_AZIMUTH", "ST_DISTANCE", "ST_HAUSDORFFDISTANCE", "ST_LENGTH", "ST_LINELOCATEPOINT",
    "ST_MAXDISTANCE", "ST_PERIMETER", "ST_X", "ST_Y", "ST_ANGLE", "COSINE_DISTANCE", "EUCLIDEAN_DISTANCE",
):  # fmt: skip
    TABLE.scalar(_name, "ANY *ANY", "FLOAT64")
for _name in (
    "ST_CONTAINS", "ST_COVEREDBY", "ST_COVERS", "ST_DISJOINT", "ST_DWITHIN", "ST_EQUALS", "ST_HAUSDORFFDWITHIN",
    "ST_INTERSECTS", "ST_INTERSECTSBOX", "ST_ISCLOSED", "ST_ISCOLLECTION", "ST_ISEMPTY", "ST_ISRING",
    "ST_TOUCHES", "ST_WITHIN",
):  # fmt: skip
    TABLE.scalar(_name, "ANY *ANY", "BOOL")
for _name in ("ST_ASTEXT", "ST_ASGEOJSON", "ST_GEOHASH", "ST_GEOMETRYTYPE"):
    TABLE.scalar(_name, "ANY *ANY", "STRING")
for _name in ("ST_DIMENSION", "ST_NPOINTS", "ST_NUMGEOMETRIES", "ST_NUMPOINTS", "S2_CELLIDFROMPOINT"):
    TABLE.scalar(_name, "ANY *ANY", "INT64")
for _name in (
    "ST_BOUNDARY", "ST_BUFFER", "ST_BUFFERWITHTOLERANCE", "ST_CENTROID", "ST_CLOSESTPOINT", "ST_CONVEXHULL",
    "ST_DIFFERENCE", "ST_ENDPOINT", "ST_EXTERIORRING", "ST_GEOGFROM", "ST_GEOGFROMGEOJSON", "ST_GEOGFROMTEXT",
    "ST_GEOGFROMWKB", "ST_GEOGPOINT", "ST_GEOGPOINTFROMGEOHASH", "ST_INTERSECTION", "ST_LINEINTERPOLATEPOINT",
    "ST_LINESUBSTRING", "ST_MAKELINE", "ST_MAKEPOLYGON", "ST_MAKEPOLYGONORIENTED", "ST_POINTN", "ST_SIMPLIFY",
    "ST_SNAPTOGRID", "ST_STARTPOINT", "ST_UNION",
):  # fmt: skip
    TABLE.scalar(_name, "ANY *ANY", lambda _: GEOGRAPHY)
for _name in ("ST_DUMP", "ST_INTERIORRINGS"):
    TABLE.scalar(_name, "ANY *ANY", lambda _: array_of(GEOGRAPHY))
for _name in ("ST_CENTROID_AGG", "ST_UNION_AGG"):
    TABLE.aggregate(_name, "ANY", lambda _: GEOGRAPHY)
TABLE.scalar("ST_ASBINARY", "ANY", "BYTES")
