"""The tables and the 22 queries of TPC-H.

`write` makes the tables from a seed. They have the schema, keys, value domains, distributions and correlations of the
specification, but not the rows of its own generator, `dbgen`. The queries have the text of the specification, with a
name for each column. Their substitution parameters are those that it gives for validation, or valid ones that find more
rows at scale 0.01; the fraction of q11 is that of this scale.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FIRST_DATE = np.datetime64("1992-01-01")
LAST_DATE = np.datetime64("1998-12-31")
CURRENT_DATE = np.datetime64("1995-06-17")

REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
NATIONS = {
    "ALGERIA": 0, "ARGENTINA": 1, "BRAZIL": 1, "CANADA": 1, "EGYPT": 4, "ETHIOPIA": 0, "FRANCE": 3, "GERMANY": 3,
    "INDIA": 2, "INDONESIA": 2, "IRAN": 4, "IRAQ": 4, "JAPAN": 2, "JORDAN": 4, "KENYA": 0, "MOROCCO": 0,
    "MOZAMBIQUE": 0, "PERU": 1, "CHINA": 2, "ROMANIA": 3, "SAUDI ARABIA": 4, "VIETNAM": 2, "RUSSIA": 3,
    "UNITED KINGDOM": 3, "UNITED STATES": 1,
}  # fmt: skip
"""The region of each nation."""

COLORS = """almond antique aquamarine azure beige bisque black blanched blue blush brown burlywood burnished chartreuse
chiffon chocolate coral cornflower cornsilk cream cyan dark deep dim dodger drab firebrick floral forest frosted
gainsboro ghost goldenrod green grey honeydew hot indian ivory khaki lace lavender lawn lemon light lime linen magenta
maroon medium metallic midnight mint misty moccasin navajo navy olive orange orchid pale papaya peach peru pink plum
powder puff purple red rose rosy royal saddle salmon sandy seashell sienna sky slate smoke snow spring steel tan thistle
tomato turquoise violet wheat white yellow""".split()

TYPES = [
    f"{first} {second} {third}"
    for first in ["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"]
    for second in ["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"]
    for third in ["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"]
]
CONTAINERS = [
    f"{first} {second}"
    for first in ["SM", "LG", "MED", "JUMBO", "WRAP"]
    for second in ["CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"]
]
SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]

NOUNS = """packages packages packages packages requests requests requests requests accounts accounts accounts accounts
deposits deposits deposits deposits foxes foxes ideas ideas theodolites theodolites instructions instructions
dependencies excuses platelets asymptotes courts dolphins multipliers sauternes warthogs frets""".split()
VERBS = "sleep sleep wake wake are are cajole cajole haggle haggle nag use boost affix detect integrate".split()
ADJECTIVES = """special special pending pending unusual unusual express express furious sly careful blithe quick fluffy
slow quiet regular regular regular regular regular final final final final ironic ironic ironic ironic even even even
bold bold silent""".split()
ADVERBS = "sometimes always never furiously slyly carefully blithely quickly fluffily slowly quietly".split()
PREPOSITIONS = "about above according\xa0to across after against along among around at before behind beside".split(" ")
AUXILIARIES = "do may might could will would can must should ought\xa0to".split(" ")
SENTENCES = ["N V", "N V P the N", "N V N", "N P the N V N", "N P the N V P the N"]
PHRASES = {
    "N": ["noun", "adjective noun", "adjective, adjective noun", "adverb adjective noun"],
    "V": ["verb", "auxiliary verb", "verb adverb", "auxiliary verb adverb"],
    "P": ["preposition"],
}
WORDS = {
    "noun": NOUNS, "verb": VERBS, "adjective": ADJECTIVES, "adverb": ADVERBS, "preposition": PREPOSITIONS,
    "auxiliary": AUXILIARIES,
}  # fmt: skip
"""The grammar of comments. A word that is listed often is drawn often."""

SENTENCES_OF_THE_POOL = 5_000
"""Comments are parts of one text."""

TABLES = ["region", "nation", "supplier", "part", "partsupp", "customer", "orders", "lineitem"]
SCRIPT = "\n".join(f"CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{name}';" for name in TABLES)


class Draw:
    """The random values of one table."""

    def __init__(self, seed: int, table: str):
        self.generator = np.random.default_rng([seed, TABLES.index(table)])
        self.pool = self.text(SENTENCES_OF_THE_POOL)

    def whole(self, low: int, high: int, rows: int) -> np.ndarray:
        """Whole numbers from low to high, both included."""
        return self.generator.integers(low, high, rows, endpoint=True)

    def one_of(self, values: list[str], rows: int) -> pa.Array:
        return pa.array(values).take(pa.array(self.generator.integers(0, len(values), rows)))

    def text(self, sentences: int) -> str:
        def words(pattern: str, choices: dict[str, list[str]]) -> str:
            """Puts one of the choices in place of each name in the pattern."""
            parts = [(part.rstrip(","), "," * part.endswith(",")) for part in pattern.split(" ")]
            return " ".join(next_of(choices[name]) + comma if name in choices else name for name, comma in parts)

        def next_of(choices: list[str]) -> str:
            return choices[int(next(numbers) * len(choices))]

        numbers = iter(self.generator.random(sentences * 30))
        ends = [".", ";", ":", "?", "!", "--"]
        made = (words(words(next_of(SENTENCES), PHRASES), WORDS) + next_of(ends) for _ in range(sentences))
        return " ".join(made).replace("\xa0", " ")

    def parts_of(self, text: str, shortest: int, longest: int, rows: int) -> list[str]:
        lengths = self.whole(shortest, longest, rows)
        starts = self.generator.integers(0, len(text) - longest, rows)
        return [text[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist())]

    def comments(self, shortest: int, longest: int, rows: int) -> list[str]:
        return self.parts_of(self.pool, shortest, longest, rows)

    def addresses(self, rows: int) -> list[str]:
        letters = list("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ, ")
        return self.parts_of("".join(self.generator.choice(letters, 100_000)), 10, 40, rows)

    def phones(self, nations: np.ndarray) -> list[str]:
        """Numbers that begin with the code of the nation's country."""
        rows = len(nations)
        ranges = [(100, 999), (100, 999), (1000, 9999)]
        numbers = zip(nations + 10, *(self.whole(low, high, rows) for low, high in ranges))
        return ["-".join(map(str, parts)) for parts in numbers]


def decimals(cents: np.ndarray) -> pa.Array:
    """Makes DECIMAL(15, 2) of hundredths."""
    words = np.stack([cents.astype(np.int64), cents.astype(np.int64) >> 63], axis=1)
    return pa.Array.from_buffers(pa.decimal128(15, 2), len(cents), [None, pa.py_buffer(words.tobytes())])


def numbered(name: str, numbers: np.ndarray) -> list[str]:
    return [f"{name}#{number:09}" for number in numbers.tolist()]


def retail_cents(parts: np.ndarray) -> np.ndarray:
    return 90_000 + parts // 10 % 20_001 + 100 * (parts % 1000)


def supplier_of(parts: np.ndarray, number: np.ndarray, suppliers: int) -> np.ndarray:
    """The number-th of a part's four suppliers, counted from 0."""
    return (parts + number * (suppliers // 4 + (parts - 1) // suppliers)) % suppliers + 1


def tables(scale: float, seed: int) -> dict[str, pa.Table]:
    """Makes the tables. They have 60,000 items at scale 0.01, the smallest at which a part's suppliers differ."""
    assert scale >= 0.01
    suppliers, parts, customers, orders = (round(scale * rows) for rows in (10_000, 200_000, 150_000, 1_500_000))
    order_keys = np.arange(orders) // 8 * 32 + np.arange(orders) % 8 + 1
    of_orders = Draw(seed, "orders")
    order_dates = FIRST_DATE + of_orders.whole(0, (LAST_DATE - FIRST_DATE).astype(int) - 151, orders)
    lines, sums = lineitem(Draw(seed, "lineitem"), order_keys, order_dates, parts, suppliers)
    return {
        "region": region(Draw(seed, "region")),
        "nation": nation(Draw(seed, "nation")),
        "supplier": supplier(Draw(seed, "supplier"), suppliers),
        "part": part(Draw(seed, "part"), parts),
        "partsupp": partsupp(Draw(seed, "partsupp"), parts, suppliers),
        "customer": customer(Draw(seed, "customer"), customers),
        "orders": order(of_orders, order_keys, order_dates, sums, customers),
        "lineitem": lines,
    }


def region(draw: Draw) -> pa.Table:
    rows = len(REGIONS)
    return pa.table({"r_regionkey": np.arange(rows), "r_name": REGIONS, "r_comment": draw.comments(31, 115, rows)})


def nation(draw: Draw) -> pa.Table:
    rows = len(NATIONS)
    return pa.table(
        {
            "n_nationkey": np.arange(rows),
            "n_name": list(NATIONS),
            "n_regionkey": list(NATIONS.values()),
            "n_comment": draw.comments(31, 114, rows),
        }
    )


def supplier(draw: Draw, rows: int) -> pa.Table:
    keys = np.arange(1, rows + 1)
    nations = draw.whole(0, len(NATIONS) - 1, rows)
    comments = draw.comments(25, 100, rows)
    # Of 10,000 suppliers, five have complaints and five have recommendations.
    few = max(1, rows // 2_000)
    for number, place in enumerate(draw.generator.choice(rows, 2 * few, replace=False).tolist()):
        word = "Complaints" if number < few else "Recommends"
        comments[place] = f"{comments[place][:20]}Customer {comments[place][20:40]}{word}"
    return pa.table(
        {
            "s_suppkey": keys,
            "s_name": numbered("Supplier", keys),
            "s_address": draw.addresses(rows),
            "s_nationkey": nations,
            "s_phone": draw.phones(nations),
            "s_acctbal": decimals(draw.whole(-99_999, 999_999, rows)),
            "s_comment": comments,
        }
    )


def part(draw: Draw, rows: int) -> pa.Table:
    keys = np.arange(1, rows + 1)
    colors = draw.generator.random((rows, len(COLORS))).argsort(axis=1)[:, :5].tolist()
    makers = draw.whole(1, 5, rows)
    brands = makers * 10 + draw.whole(1, 5, rows)
    return pa.table(
        {
            "p_partkey": keys,
            "p_name": [" ".join(COLORS[color] for color in five) for five in colors],
            "p_mfgr": [f"Manufacturer#{maker}" for maker in makers],
            "p_brand": [f"Brand#{brand}" for brand in brands],
            "p_type": draw.one_of(TYPES, rows),
            "p_size": draw.whole(1, 50, rows).astype(np.int32),
            "p_container": draw.one_of(CONTAINERS, rows),
            "p_retailprice": decimals(retail_cents(keys)),
            "p_comment": draw.comments(5, 22, rows),
        }
    )


def partsupp(draw: Draw, parts: int, suppliers: int) -> pa.Table:
    rows = parts * 4
    keys = np.repeat(np.arange(1, parts + 1), 4)
    return pa.table(
        {
            "ps_partkey": keys,
            "ps_suppkey": supplier_of(keys, np.arange(rows) % 4, suppliers),
            "ps_availqty": draw.whole(1, 9_999, rows).astype(np.int32),
            "ps_supplycost": decimals(draw.whole(100, 100_000, rows)),
            "ps_comment": draw.comments(49, 198, rows),
        }
    )


def customer(draw: Draw, rows: int) -> pa.Table:
    keys = np.arange(1, rows + 1)
    nations = draw.whole(0, len(NATIONS) - 1, rows)
    return pa.table(
        {
            "c_custkey": keys,
            "c_name": numbered("Customer", keys),
            "c_address": draw.addresses(rows),
            "c_nationkey": nations,
            "c_phone": draw.phones(nations),
            "c_acctbal": decimals(draw.whole(-99_999, 999_999, rows)),
            "c_mktsegment": draw.one_of(SEGMENTS, rows),
            "c_comment": draw.comments(29, 116, rows),
        }
    )


def lineitem(
    draw: Draw, order_keys: np.ndarray, order_dates: np.ndarray, parts: int, suppliers: int
) -> tuple[pa.Table, dict[str, np.ndarray]]:
    """Returns the items, and of each order's items the total price in cents and the share that is shipped."""
    counts = draw.whole(1, 7, len(order_keys))
    firsts = np.cumsum(counts) - counts
    rows = int(counts.sum())
    dates = np.repeat(order_dates, counts)
    part_keys = draw.whole(1, parts, rows)
    quantity = draw.whole(1, 50, rows)
    price = quantity * retail_cents(part_keys)
    discount, tax = draw.whole(0, 10, rows), draw.whole(0, 8, rows)
    shipped = dates + draw.whole(1, 121, rows)
    received = shipped + draw.whole(1, 30, rows)
    is_shipped = shipped <= CURRENT_DATE
    returned = np.where(draw.whole(0, 1, rows) == 1, "R", "A")
    table = pa.table(
        {
            "l_orderkey": np.repeat(order_keys, counts),
            "l_partkey": part_keys,
            "l_suppkey": supplier_of(part_keys, draw.whole(0, 3, rows), suppliers),
            "l_linenumber": (np.arange(rows) - np.repeat(firsts, counts) + 1).astype(np.int32),
            "l_quantity": decimals(quantity * 100),
            "l_extendedprice": decimals(price),
            "l_discount": decimals(discount),
            "l_tax": decimals(tax),
            "l_returnflag": np.where(received <= CURRENT_DATE, returned, "N").tolist(),
            "l_linestatus": np.where(is_shipped, "F", "O").tolist(),
            "l_shipdate": shipped,
            "l_commitdate": dates + draw.whole(30, 90, rows),
            "l_receiptdate": received,
            "l_shipinstruct": draw.one_of(INSTRUCTIONS, rows),
            "l_shipmode": draw.one_of(MODES, rows),
            "l_comment": draw.comments(10, 43, rows),
        }
    )
    totals = np.add.reduceat(price * (100 + tax) * (100 - discount), firsts) // 10_000
    return table, {"total": totals, "shipped": np.add.reduceat(is_shipped.astype(int), firsts) / counts}


def order(draw: Draw, keys: np.ndarray, dates: np.ndarray, sums: dict[str, np.ndarray], customers: int) -> pa.Table:
    rows = len(keys)
    # Every third customer has no orders.
    buyers = draw.generator.integers(0, customers - customers // 3, rows)
    shipped = sums["shipped"]
    return pa.table(
        {
            "o_orderkey": keys,
            "o_custkey": buyers // 2 * 3 + buyers % 2 + 1,
            "o_orderstatus": np.where(shipped == 1, "F", np.where(shipped == 0, "O", "P")).tolist(),
            "o_totalprice": decimals(sums["total"]),
            "o_orderdate": dates,
            "o_orderpriority": draw.one_of(PRIORITIES, rows),
            "o_clerk": numbered("Clerk", draw.whole(1, max(1, rows // 1_500), rows)),
            "o_shippriority": np.zeros(rows, np.int32),
            "o_comment": draw.comments(19, 78, rows),
        }
    )


def write(folder: Path, scale: float, seed: int) -> None:
    """Writes each table as a folder of Parquet files of several row groups, and `SCRIPT` as `tables.sql`."""
    for name, table in tables(scale, seed).items():
        (folder / name).mkdir()
        files = 1 if table.num_rows < 100 else 3
        per_file = -(-table.num_rows // files)
        for number in range(files):
            rows = table.slice(number * per_file, per_file)
            pq.write_table(rows, folder / name / f"{number}.parquet", row_group_size=max(1, per_file // 4))
    (folder / "tables.sql").write_text(SCRIPT)


QUERIES = {
    "q1": """
SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
    sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
    avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
FROM lineitem
WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
GROUP BY l_returnflag, l_linestatus
ORDER BY l_returnflag, l_linestatus
""",
    "q2": """
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
FROM part, supplier, partsupp, nation, region
WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND p_type LIKE '%BRASS'
    AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'AMERICA'
    AND ps_supplycost = (
        SELECT min(ps_supplycost)
        FROM partsupp, supplier, nation, region
        WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
            AND n_regionkey = r_regionkey AND r_name = 'AMERICA'
    )
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
LIMIT 100
""",
    "q3": """
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
    AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority
ORDER BY revenue DESC, o_orderdate
LIMIT 10
""",
    "q4": """
SELECT o_orderpriority, count(*) AS order_count
FROM orders
WHERE o_orderdate >= DATE '1993-07-01' AND o_orderdate < DATE '1993-07-01' + INTERVAL '3' MONTH
    AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
GROUP BY o_orderpriority
ORDER BY o_orderpriority
""",
    "q5": """
SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM customer, orders, lineitem, supplier, nation, region
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
    AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA'
    AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR
GROUP BY n_name
ORDER BY revenue DESC
""",
    "q6": """
SELECT sum(l_extendedprice * l_discount) AS revenue
FROM lineitem
WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
    AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24
""",
    "q7": """
SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue
FROM (
    SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, EXTRACT(YEAR FROM l_shipdate) AS l_year,
        l_extendedprice * (1 - l_discount) AS volume
    FROM supplier, lineitem, orders, customer, nation n1, nation n2
    WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
        AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
        AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY') OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))
        AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
) AS shipping
GROUP BY supp_nation, cust_nation, l_year
ORDER BY supp_nation, cust_nation, l_year
""",
    "q8": """
SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share
FROM (
    SELECT EXTRACT(YEAR FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume, n2.n_name AS nation
    FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
    WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
        AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA'
        AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31'
        AND p_type = 'STANDARD PLATED STEEL'
) AS all_nations
GROUP BY o_year
ORDER BY o_year
""",
    "q9": """
SELECT nation, o_year, sum(amount) AS sum_profit
FROM (
    SELECT n_name AS nation, EXTRACT(YEAR FROM o_orderdate) AS o_year,
        l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
    FROM part, supplier, lineitem, partsupp, orders, nation
    WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
        AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%'
) AS profit
GROUP BY nation, o_year
ORDER BY nation, o_year DESC
""",
    "q10": """
SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone,
    c_comment
FROM customer, orders, lineitem, nation
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey
    AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1993-10-01' + INTERVAL '3' MONTH
    AND l_returnflag = 'R' AND c_nationkey = n_nationkey
GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment
ORDER BY revenue DESC
LIMIT 20
""",
    "q11": """
SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value
FROM partsupp, supplier, nation
WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
GROUP BY ps_partkey
HAVING sum(ps_supplycost * ps_availqty) > (
    SELECT sum(ps_supplycost * ps_availqty) * 0.01
    FROM partsupp, supplier, nation
    WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY'
)
ORDER BY value DESC
""",
    "q12": """
SELECT l_shipmode,
    sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high_line_count,
    sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count
FROM orders, lineitem
WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
    AND l_shipdate < l_commitdate
    AND l_receiptdate >= DATE '1994-01-01' AND l_receiptdate < DATE '1994-01-01' + INTERVAL '1' YEAR
GROUP BY l_shipmode
ORDER BY l_shipmode
""",
    "q13": """
SELECT c_count, count(*) AS custdist
FROM (
    SELECT c_custkey, count(o_orderkey)
    FROM customer LEFT OUTER JOIN orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%'
    GROUP BY c_custkey
) AS c_orders (c_custkey, c_count)
GROUP BY c_count
ORDER BY custdist DESC, c_count DESC
""",
    "q14": """
SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
    / sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
FROM lineitem, part
WHERE l_partkey = p_partkey AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-09-01' + INTERVAL '1' MONTH
""",
    "q15": """
WITH revenue (supplier_no, total_revenue) AS (
    SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount))
    FROM lineitem
    WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH
    GROUP BY l_suppkey
)
SELECT s_suppkey, s_name, s_address, s_phone, total_revenue
FROM supplier, revenue
WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue)
ORDER BY s_suppkey
""",
    "q16": """
SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt
FROM partsupp, part
WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%'
    AND p_size IN (49, 14, 23, 45, 19, 3, 36, 9)
    AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
GROUP BY p_brand, p_type, p_size
ORDER BY supplier_cnt DESC, p_brand, p_type, p_size
""",
    "q17": """
SELECT sum(l_extendedprice) / 7.0 AS avg_yearly
FROM lineitem, part
WHERE p_partkey = l_partkey AND p_brand = 'Brand#32' AND p_container = 'SM CASE'
    AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)
""",
    "q18": """
SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS sum_qty
FROM customer, orders, lineitem
WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 300)
    AND c_custkey = o_custkey AND o_orderkey = l_orderkey
GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
ORDER BY o_totalprice DESC, o_orderdate
LIMIT 100
""",
    "q19": """
SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM lineitem, part
WHERE (
    p_partkey = l_partkey AND p_brand = 'Brand#23' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
    AND l_quantity >= 1 AND l_quantity <= 1 + 10 AND p_size BETWEEN 1 AND 5
    AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON'
) OR (
    p_partkey = l_partkey AND p_brand = 'Brand#15' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
    AND l_quantity >= 13 AND l_quantity <= 13 + 10 AND p_size BETWEEN 1 AND 10
    AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON'
) OR (
    p_partkey = l_partkey AND p_brand = 'Brand#11' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
    AND l_quantity >= 22 AND l_quantity <= 22 + 10 AND p_size BETWEEN 1 AND 15
    AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct = 'DELIVER IN PERSON'
)
""",
    "q20": """
SELECT s_name, s_address
FROM supplier, nation
WHERE s_suppkey IN (
        SELECT ps_suppkey
        FROM partsupp
        WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE 'blue%')
            AND ps_availqty > (
                SELECT 0.5 * sum(l_quantity)
                FROM lineitem
                WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
                    AND l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR
            )
    )
    AND s_nationkey = n_nationkey AND n_name = 'BRAZIL'
ORDER BY s_name
""",
    "q21": """
SELECT s_name, count(*) AS numwait
FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F'
    AND l1.l_receiptdate > l1.l_commitdate
    AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
    AND NOT EXISTS (
        SELECT *
        FROM lineitem l3
        WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate
    )
    AND s_nationkey = n_nationkey AND n_name = 'ARGENTINA'
GROUP BY s_name
ORDER BY numwait DESC, s_name
LIMIT 100
""",
    "q22": """
SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal
FROM (
    SELECT substring(c_phone FROM 1 FOR 2) AS cntrycode, c_acctbal
    FROM customer
    WHERE substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')
        AND c_acctbal > (
            SELECT avg(c_acctbal)
            FROM customer
            WHERE c_acctbal > 0.00 AND substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23', '29', '30', '18', '17')
        )
        AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)
) AS custsale
GROUP BY cntrycode
ORDER BY cntrycode
""",
}
QUERIES = {name: text.strip() for name, text in QUERIES.items()}
