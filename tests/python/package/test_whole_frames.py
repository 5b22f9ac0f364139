"""Methods of tables that need all rows: groups, distinct rows, sorts, unions and joins. They are stages of a feed."""

import gc
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import forebay
from feeds import files

pandas = pytest.importorskip("pandas")


@pytest.fixture
def session(tmp_path):
    return forebay.Session(base=tmp_path, root=tmp_path / "root", threads=2)


SALES = {
    "id": list(range(300)),
    "shop": [[3, 1, None, 2, 7][n * 3 % 7 % 5] for n in range(300)],
    "My \"size\"": [n * 7919 % 13 for n in range(300)],
    "price": [float(n % 11) / 4 for n in range(300)],
}


@pytest.fixture
def sales(session):
    return session.table(SALES, name="sales")


@pytest.fixture
def frame():
    return pandas.DataFrame(SALES).astype({"shop": "Int64"})


@pytest.fixture
def shops(session):
    return session.table({"shop": [1, 2, 9, None], "city": ["Bern", "Oslo", "Rome", "Ulm"]}, name="shops")


def rows(table, **options):
    """The rows that a loader gives, as tuples."""
    batches = table.load(format="arrow", batch_size=37, **options)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def rows_of(frame):
    """The rows of a pandas frame, with None for what is missing."""
    return [tuple(None if pandas.isna(value) else value for value in row) for row in frame.itertuples(index=False)]


def stages(table):
    return str(table.explain()).count("\n  stage ")


# Groups


def test_a_row_for_each_group(sales, frame):
    few = sales.filter("id < 250")
    grouped = few.group_by("shop").agg(n="count(*)", total="sum(price)", largest='max("My ""size""")')
    expected = frame[frame["id"] < 250].groupby("shop", dropna=False)
    expected = expected.agg(n=("id", "size"), total=("price", "sum"), largest=('My "size"', "max")).reset_index()
    # By the keys, nulls first.
    expected = expected.sort_values("shop", na_position="first")
    assert grouped.columns == {"shop": "Int64", "n": "Int64", "total": "Float64", "largest": "Int64"}
    assert rows(grouped) == rows_of(expected) == rows(grouped)
    assert grouped.count() == 5 and stages(grouped) == 1


def test_keys_are_columns_and_expressions(sales, frame):
    grouped = sales.group_by('My "size"', half="id % 2", one="1").agg(first="min(id)")
    assert list(grouped.columns) == ['My "size"', "half", "one", "first"]
    found = {(size, half): (one, first) for size, half, one, first in rows(grouped)}
    expected = frame.assign(half=frame["id"] % 2).groupby(['My "size"', "half"])["id"].min()
    assert found == {key: (1, first) for key, first in expected.items()}
    # An aggregate sees the column, and not the key that has its name.
    [*by_id] = rows(sales.group_by(id="id % 3").agg(n="sum(id)"))
    assert by_id == [(rest, sum(range(rest, 300, 3))) for rest in range(3)]


def test_groups_are_filtered_sorted_joined_and_loaded_shuffled(sales):
    frequent = sales.group_by("shop").agg(n="count(*)").filter("n > 60")
    known = {shop: n for shop, n in Counter(SALES["shop"]).items() if n > 60}
    assert dict(rows(frequent)) == known != {}
    weighted = sales.join(frequent, on="shop").select("id", weight="1.0 / n")
    assert stages(weighted) == 1
    found = dict(rows(weighted, shuffle=True, seed=3))
    # Nothing is equal to null.
    assert found == {n: 1 / known[shop] for n, shop in enumerate(SALES["shop"]) if shop in known and shop is not None}


@pytest.mark.parametrize("group, phrase", [
    (lambda table: table.group_by(), "group_by.. needs at least one column"),
    (lambda table: table.group_by("shopp"), "must be 'id', 'shop'.*got 'shopp'\nhint: did you mean 'shop'"),
    (lambda table: table.group_by(3), '"column" must be the name of a column'),
    (lambda table: table.group_by("shop", "shop"), '"columns" must be a list of column names, each once'),
    (lambda table: table.group_by("shop", shop="id / 2"), 'two keys of group_by are named "shop"'),
    (lambda table: table.group_by(half=2), '"half" must be SQL text such as "size / 1000"'),
    (lambda table: table.group_by("shop").agg(), "agg.. needs at least one aggregate"),
    (lambda table: table.group_by("shop").agg(n=3), '"n" must be SQL text such as "count'),
    (lambda table: table.group_by("shop").agg(shop="count(*)"), '"shop" is a key of the groups'),
    (lambda table: table.group_by("shop").agg(p="price").columns, "neither in GROUP BY nor inside an aggregate"),
    (lambda table: table.group_by("shop").agg(n="count(pricee)").columns, "pricee"),
    (lambda table: table.group_by("shop").agg(l="array_agg(id)").columns, "without ORDER BY"),
    (lambda table: table.select(r="random_uniform()").group_by("r").agg(n="count(*)").columns, "runs in a feed"),
])
def test_what_has_no_groups_is_refused(sales, group, phrase):
    with pytest.raises(forebay.InvalidError, match=phrase):
        group(sales)


def test_aggregates_of_the_whole_table_are_selected(sales):
    assert rows(sales.select(rows="count(*)", last="max(id)")) == [(300, 299)]
    with pytest.raises(forebay.InvalidError) as error:
        sales.group_by()
    assert 'table.select(rows="count(*)")' in error.value.hint


def test_what_runs_in_a_feed_has_no_stage_above_it(sales):
    for table in (sales.sample(0.5), sales.limit(5).repeat("id")):
        with pytest.raises(forebay.InvalidError, match="runs in a feed"):
            table.sort("id").columns
    some = sales.filter("hash_bucket(id, 2) = 0")
    assert rows(some.sort("id")) == rows(some) != []


def test_groups_say_what_they_are_of(sales):
    assert repr(sales.group_by("shop")) == '<forebay.GroupBy "shop" of SELECT * FROM "sales">'


# Distinct rows


def test_distinct_rows_come_once_in_the_order_of_their_values(sales, frame):
    some = sales.select("shop", half="id % 2")
    assert rows(some.distinct()) == sorted(set(rows(some)), key=lambda row: (row[0] or 0, row[1]))
    expected = frame.assign(half=frame["id"] % 2)[["shop", "half"]].drop_duplicates()
    assert set(rows(some.distinct())) == set(rows_of(expected))
    assert rows(sales.distinct()) == rows(sales)


def test_the_first_row_of_each_value_stays(sales, frame):
    assert rows(sales.distinct("shop")) == rows_of(frame.drop_duplicates("shop"))
    both = sales.distinct("shop", 'My "size"')
    assert rows(both) == rows_of(frame.drop_duplicates(["shop", 'My "size"'])) == rows(both)
    assert both.columns == sales.columns
    # First is what a sort says.
    dearest = sales.sort("price", descending=True).distinct("shop")
    expected = frame.sort_values("price", ascending=False, kind="stable").drop_duplicates("shop")
    assert rows(dearest) == rows_of(expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_that_are_equal_are_one_value(session, dtype):
    values = np.array([0.0, -0.0, math.nan, 1.0, math.nan, 1.0009765625, 1.0], dtype)
    table = session.table({"x": values, "n": np.arange(7)})
    assert [n for _, n in rows(table.distinct("x"))] == [0, 2, 3, 5]
    assert table.select("x").distinct().count() == 4


def test_lists_and_other_values_are_compared(session):
    table = session.table({
        "tokens": [[1], [1], [], None, [1, 2], [], None],
        "bytes": [b"a", b"a", b"", None, b"b", b"", None],
        "n": list(range(7)),
    })
    for name in ("tokens", "bytes"):
        assert [row[2] for row in rows(table.distinct(name))] == [0, 2, 3, 4]
    assert table.drop("n").distinct().count() == 4


def test_images_are_computed_after_the_choice_of_rows(session):
    pixels = np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3)
    table = session.table({"label": ["a", "b", "a", "b"], "image": pixels})
    first = table.with_column("image", "random_hflip(image, p => 0.0)").distinct("label")
    [batch] = first.load(format="numpy")
    assert np.array_equal(batch["image"], pixels[:2])
    with pytest.raises(forebay.InvalidError, match=r'distinct compares .* "image" is a tensor<uint8>\[2,') as error:
        table.distinct()
    assert 'distinct("path")' in error.value.hint
    with pytest.raises(forebay.InvalidError, match="did you mean 'label'"):
        table.distinct("labels")


# Sorts


@pytest.mark.parametrize("columns, descending, nulls_last", [
    (["price"], False, True),
    (["shop"], False, True),
    (["shop"], True, True),
    (["shop"], True, False),
    (["shop", "price"], [True, False], True),
    (["price", 'My "size"', "shop"], [False, True, True], False),
])
def test_rows_are_sorted_stably(sales, frame, columns, descending, nulls_last):
    up = [not one for one in descending] if isinstance(descending, list) else [not descending] * len(columns)
    expected = frame
    # From the last column to the first, since pandas sorts one column stably, and places nulls of all alike.
    for name, ascending in reversed(list(zip(columns, up))):
        place = "last" if nulls_last else "first"
        expected = expected.sort_values(name, ascending=ascending, kind="stable", na_position=place)
    ordered = sales.sort(*columns, descending=descending, nulls_last=nulls_last)
    assert rows(ordered) == rows_of(expected) == rows(ordered)
    assert ordered.columns == sales.columns
    assert ordered.sql != sales.sort("id").sql


def test_the_order_stays_in_what_follows(sales, shops):
    ordered = sales.sort("price", "id", descending=[True, False])
    expected = sorted(range(300), key=lambda n: (-SALES["price"][n], n))
    assert [row[0] for row in rows(ordered.filter("id >= 100").select("id"))] == [n for n in expected if n >= 100]
    known = [n for n in expected if SALES["shop"][n] in (1, 2)]
    assert [row[0] for row in rows(ordered.join(shops, on="shop").select("id", "city"))] == known
    assert sorted(rows(ordered, shuffle=True, seed=1)) == sorted(rows(sales), key=lambda row: row[0])
    assert [row[0] for row in rows(sales.sort("id", descending=True).sort("price"))][:2] == [297, 286]


def test_nan_is_greater_than_numbers(session):
    table = session.table({"x": [math.nan, 2.0, -1.0, None, math.inf], "name": list("nabzi")})
    assert "".join(table.sort("x").to_arrow()["name"].to_pylist()) == "bainz"
    assert "".join(table.sort("x", descending=True).to_arrow()["name"].to_pylist()) == "niabz"


@pytest.mark.parametrize("ordered, phrase", [
    (lambda table: table.sort(), "sort.. needs at least one column"),
    (lambda table: table.sort("shopp"), "did you mean 'shop'"),
    (lambda table: table.sort("shop", "price", descending=[True]), '"descending" must be True or False, or a list'),
    (lambda table: table.sort("shop", descending="yes"), '"descending" must be True or False'),
    (lambda table: table.sort("shop", nulls_last=1), '"nulls_last" must be True or False'),
    (lambda table: table.sort(["shop"]), '"column" must be the name of a column'),
])
def test_what_cannot_be_sorted_is_refused(sales, ordered, phrase):
    with pytest.raises(forebay.InvalidError, match=phrase):
        ordered(sales)


def test_the_first_rows_are_those_of_the_order(sales, session, tmp_path):
    dearest = sorted(range(300), key=lambda n: -SALES["price"][n])
    ordered = sales.sort("price", descending=True)
    assert [row[0] for row in rows(ordered.limit(5))] == dearest[:5] == ordered.head(5)["id"].to_pylist()
    assert [row[0] for row in rows(sales.limit(5).sort("price", descending=True))] == [4, 3, 2, 1, 0]
    assert [row[0] for row in rows(sales.filter("id % 2 = 1").limit(3))] == [1, 3, 5]
    assert rows(sales.group_by("shop").agg(n="count(*)").limit(2)) == rows(sales.group_by("shop").agg(n="count(*)"))[:2]
    assert [row[0] for row in rows(sales.limit(3).union(sales.limit(2)).limit(4))] == [0, 1, 2, 0]
    numbers = session.table(files(tmp_path / "numbers"))
    assert [n for [n] in rows(numbers.sort("n", descending=True).limit(50).filter("n % 40 = 0"))] == [80]


# Unions


def test_rows_of_several_tables_follow_each_other(sales, session):
    tail = sales.filter("id >= 298").select("price", "shop", '"My ""size"""', "id")
    other = pa.table(sales.limit(1).to_arrow())
    both = sales.filter("id < 2").union(tail, other)
    assert [row[0] for row in rows(both)] == [0, 1, 298, 299, 0] == [row[0] for row in rows(both)]
    assert both.columns == sales.columns and stages(both) == 1
    assert [row[0] for row in rows(sales.sort("id", descending=True).limit(2).union(sales.limit(1)))] == [299, 298, 0]
    assert both.union(both).count() == 10


def test_images_of_one_shape_are_united(session):
    pixels = np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3)
    table = session.table({"image": pixels})
    [batch] = table.union({"image": pixels[::-1]}).load(format="numpy")
    assert np.array_equal(batch["image"], np.concatenate([pixels, pixels[::-1]]))
    with pytest.raises(forebay.InvalidError, match=r"\[2, 2, 3\] in table 1 of union, and tensor<uint8>\[3, 2, 2\]"):
        table.union({"image": pixels.reshape(4, 3, 2, 2)})


@pytest.mark.parametrize("union, phrase", [
    (lambda table: table.union(), "union.. needs at least one other table"),
    (lambda table: table.union(table.drop("price")), 'table 1 of union has the column "price", and table 2 has not'),
    (lambda table: table.union(table, table.with_column("c", "1")), 'table 3 of union has the column "c", and table 1'),
    (lambda table: table.union(table.with_column("id", "price")), '"id" is Int64 in table 1 of union, and Float64 in'),
    (lambda table: table.union(forebay.Session().table(SALES)), "the tables of union must belong to one session"),
])
def test_tables_of_other_columns_are_refused(sales, union, phrase):
    with pytest.raises(forebay.InvalidError, match=phrase) as error:
        union(sales)
    assert error.value.hint or "at least" in phrase


# Joins


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@pytest.mark.parametrize("is_renamed", [False, True])
def test_joins_have_the_rows_of_pandas(sales, frame, shops, how, is_renamed):
    few, other = frame[frame["id"] < 40], shops.to_pandas()
    # Here nulls are not equal, and there they are.
    left, right = few[few["shop"].notna()], other[other["shop"].notna()].astype({"shop": "Int64"})
    shops = shops.filter("shop IS NOT NULL")
    sales = sales.filter("id < 40", "shop IS NOT NULL")
    on = "shop"
    if is_renamed:
        on, shops, right = {"shop": "key"}, shops.select("city", key="shop"), right.rename(columns={"shop": "key"})
        expected = left.merge(right, left_on="shop", right_on="key", how=how)
    else:
        expected = left.merge(right, on="shop", how=how)
    joined = sales.join(shops, on=on, how="full" if how == "outer" else how)
    expected = expected[list(joined.columns)]
    assert sorted(rows(joined), key=repr) == sorted(rows_of(expected), key=repr)
    assert rows(joined) == rows(joined)
    assert stages(joined) == (how in ("right", "outer"))


def test_rows_without_a_match_have_a_key(sales, shops):
    few = sales.filter("id < 6").select("id", "shop")
    assert sorted(rows(few.filter("shop = 3").join(shops, on="shop", how="full")), key=repr) == [
        (0, 3, None), (4, 3, None), (None, 1, "Bern"), (None, 2, "Oslo"), (None, 9, "Rome"), (None, None, "Ulm")
    ]
    assert few.join(shops, on="shop", how="right").columns == {"id": "Int64", "shop": "Int64", "city": "Utf8"}
    # Nulls are not equal.
    without = [row for row in rows(few.join(shops, on="shop", how="full")) if row[1] is None]
    assert len(without) == SALES["shop"][:6].count(None) + 1


def test_rows_with_and_without_a_match(sales, shops):
    twice = shops.union(shops)
    semi, anti = (sales.join(twice, on="shop", how=how) for how in ("semi", "anti"))
    assert semi.columns == anti.columns == sales.columns and stages(semi) == 1
    known = [n for n, shop in enumerate(SALES["shop"]) if shop in (1, 2)]
    assert [row[0] for row in rows(semi)] == known
    assert [row[0] for row in rows(anti)] == [n for n in range(300) if n not in known]
    renamed = shops.select(key="shop")
    assert [row[0] for row in rows(sales.join(renamed, on={"shop": "key"}, how="semi"))] == known


def test_all_pairs(sales, shops):
    pairs = sales.select("id").limit(3).join(shops.select("city").limit(2), how="cross")
    assert rows(pairs) == [(n, city) for n in range(3) for city in ("Bern", "Oslo")]


@pytest.mark.parametrize("options, phrase", [
    ({"on": "shop", "how": "rihgt"}, "\"how\" must be 'inner', .*did you mean 'right'"),
    ({"on": "shop", "how": None}, '"how" must be'),
    ({"on": "shopp", "how": "right"}, "\"on\" must be .* got 'shopp'\nhint: did you mean 'shop'"),
    ({"on": {"shop": "town"}}, "\"on\" must be 'shop' or 'city', got 'town'"),
    ({"how": "full"}, '"on" must be a column'),
    ({"on": "shop", "how": "cross"}, 'a cross join has no "on"'),
])
def test_a_join_is_refused_with_the_reason(sales, shops, options, phrase):
    with pytest.raises(forebay.InvalidError, match=f"(?s){phrase}"):
        sales.join(shops, **options)


# All of them


def test_nothing_runs_before_a_loader_is_made(sales, shops, session, tmp_path):
    table = sales.join(shops, on="shop", how="full").union(sales.with_column("city", "'Bonn'")).distinct("id", "city")
    table = table.sort("price", descending=True).group_by("city").agg(n="count(*)", ids="array_agg(id ORDER BY id)")
    table = table.limit(3)
    assert list(table.columns) == ["city", "n", "ids"]
    assert "not kept" in str(table.explain()) and not (tmp_path / "root").exists()
    found = rows(table)
    assert [city for city, *_ in found] == [None, "Bern", "Bonn"] and (tmp_path / "root").exists()
    refusing = forebay.Session(base=tmp_path, root=tmp_path / "root", no_precompute=True)
    again = refusing.table(SALES, name="sales")
    with pytest.raises(forebay.Error, match="stage_1"):
        again.sort("price").load()


def test_the_same_rows_on_any_number_of_threads(tmp_path):
    def loaded(threads, root):
        session = forebay.Session(base=tmp_path, root=tmp_path / root, threads=threads)
        numbers = session.table(files(tmp_path / "numbers", 1000)).with_columns(a="n * 7919 % 10", x="n * 0.1 / 3")
        tables = [
            numbers.sort("a"),
            numbers.distinct("a"),
            numbers.group_by("a").agg(total="sum(x)", n="count(*)"),
            numbers.union(numbers),
            numbers.join(numbers.select("a", m="n").filter("m < 20"), on="a", how="full"),
        ]
        loaders = [table.load(format="arrow", shuffle=True, seed=5, batch_size=100) for table in tables]
        return [(loader.feed_id, [batch.to_pydict() for batch in loader]) for loader in loaders]

    assert loaded(1, "one") == loaded(4, "four")


def test_a_loader_resumes_in_a_sorted_table(sales):
    ordered = sales.sort("price", descending=True).select("id")
    loader = ordered.load(format="numpy", batch_size=32)
    for batch in loader:
        if batch.step == 3:
            state = loader.state_dict()
            break
    rest = ordered.load(format="numpy", batch_size=32)
    rest.load_state_dict(state)
    expected = [row[0] for row in rows(ordered)][4 * 32 :]
    assert [n for batch in rest for n in batch["id"].tolist()] == expected


def test_they_hold_the_frames_of_all_tables():
    session = forebay.Session()
    frame = pa.table({"n": [1, 2]})
    united = session.table(frame).union({"n": [2, 3]}).sort("n").distinct()
    grouped = united.group_by("n").agg(k="count(*)")
    del united
    gc.collect()
    assert [row[0] for row in session._native.execute("tables", "SHOW TABLES")[0][1:]] != []
    assert grouped.columns == {"n": "Int64", "k": "Int64"}
    del grouped
    gc.collect()
    assert session._native.execute("tables", "SHOW TABLES")[0][1:] == []
