"""Every wrong argument is refused, with its name, its value and the accepted values."""

import pyarrow as pa
import pytest

import forebay
from feeds import pipeline, range_of


@pytest.fixture(scope="module")
def rows():
    return pipeline({"n": range_of(10), "tokens": [[1]] * 10})


@pytest.fixture(scope="module")
def server():
    with forebay.serve() as server:
        yield server


POSITIVE = "must be a positive integer, got "
LOAD = [
    ("batch_size", 0, POSITIVE + "0"),
    ("batch_size", -1, POSITIVE + "-1"),
    ("batch_size", 1.5, POSITIVE + "1.5"),
    ("batch_size", "8", POSITIVE + "'8'"),
    ("batch_size", True, POSITIVE + "True"),
    ("batch_size", 2**64, "must be at most 18446744073709551615, got 18446744073709551616"),
    ("global_batch_size", 0, POSITIVE + "0"),
    ("epochs", 0, POSITIVE + "0"),
    ("epochs", "all", POSITIVE + "'all'"),
    ("prefetch_factor", 0, POSITIVE + "0"),
    ("prefetch_factor", 2**63, "must be at most 65536, got 9223372036854775808"),
    ("window_rows", 0, POSITIVE + "0"),
    ("seed", -1, "must be an integer of at least 0, got -1"),
    ("seed", 0.5, "must be an integer of at least 0, got 0.5"),
    ("seed", 2**64, "must be at most 18446744073709551615, got 18446744073709551616"),
    ("shuffle", 1, "must be True or False, got 1"),
    ("shuffle", "yes", "must be True or False, got 'yes'"),
    ("drop_last", 0, "must be True or False, got 0"),
    ("pin_memory", "no", "must be True or False, got 'no'"),
    ("format", "pandas", "must be 'torch', 'numpy', 'jax', 'tf' or 'arrow', got 'pandas'"),
    ("format", 5, "must be 'torch', 'numpy', 'jax', 'tf' or 'arrow', got 5"),
    ("on_error", "ignore", "must be 'raise', 'skip' or 'quarantine', got 'ignore'"),
    ("delivery", "random", "must be 'ordered' or 'dynamic', got 'random'"),
    ("job", 5, "must be a string, got 5"),
    ("columns", "n", "must be a list of column names, got 'n'"),
    ("columns", 5, "must be a list of column names, got 5"),
    ("columns", [1], "must be a list of column names, got [1]"),
    ("columns", [], "must be a list of column names, got []"),
    ("columns", ["n", "n"], "must be a list of column names, each once, got ['n', 'n']"),
    ("columns", ["N"], "must be 'n' or 'tokens', got 'N'"),
    ("window_bytes", 0, "must be a size such as '64MiB' or a number of bytes, got 0"),
    ("window_bytes", "0MiB", "must be a size such as '64MiB' or a number of bytes, got '0MiB'"),
    ("window_bytes", "64 parsecs", "must be a size such as '64MiB' or a number of bytes, got '64 parsecs'"),
    ("window_bytes", "", "must be a size such as '64MiB' or a number of bytes, got ''"),
    ("window_bytes", [], "must be a size such as '64MiB' or a number of bytes, got []"),
    ("window_bytes", "99999999999TiB", "must be a size such as '64MiB' or a number of bytes, got '99999999999TiB'"),
    ("bucket_by_length", 5, "must be a string, got 5"),
    ("bucket_boundaries", 5, "must be a list of ascending positive integers, got 5"),
    ("bucket_boundaries", [0], "must be a list of ascending positive integers, got [0]"),
    ("bucket_boundaries", ["x"], "must be a list of ascending positive integers, got ['x']"),
]


@pytest.mark.parametrize("name, value, message", LOAD, ids=lambda value: repr(value)[:24])
def test_load_names_the_argument_the_value_and_what_is_accepted(rows, name, value, message):
    for load in (rows.load, lambda **options: forebay.load(rows, **options)):
        with pytest.raises(forebay.InvalidError) as raised:
            load(**{"format": "arrow", name: value})
        assert raised.value.message == f'"{name}" {message}'


def test_a_near_miss_is_suggested(rows):
    with pytest.raises(forebay.InvalidError) as raised:
        rows.load(format="nunpy")
    assert raised.value.hint == "did you mean 'numpy'?"


def test_an_unknown_keyword_is_a_type_error(rows):
    for call in (rows.load, rows.preview, rows.explain, forebay.Session):
        with pytest.raises(TypeError, match="batchsize"):
            call(batchsize=3)


@pytest.mark.parametrize(
    "name, instead",
    [
        ("num_workers", "forebay.Session(threads=n) limits them"),
        ("sampler", "shares the samples between the ranks"),
        ("drop_remainder", 'give "drop_last"'),
        ("batchsize", 'did you mean "batch_size"?'),
        ("nonsense", "see help(forebay.load)"),
    ],
)
def test_an_argument_of_other_loaders_is_explained(rows, name, instead):
    for load in (rows.load, lambda **options: forebay.load(rows, **options), forebay.table({"n": [1]}).load):
        with pytest.raises(TypeError) as raised:
            load(**{name: 4})
        assert str(raised.value).startswith(f'load has no argument "{name}"; ') and instead in str(raised.value)


@pytest.mark.parametrize(
    "padding, message",
    [
        (0, '"padding" must be a dict of columns and their values, got 0'),
        (["n"], "\"padding\" must be a dict of columns and their values, got ['n']"),
        ({"m": 0}, "\"padding\" must be 'n', got 'm'"),
        ({"n": "0"}, "\"padding\" must be a number for \"n\", got '0'"),
    ],
    ids=repr,
)
def test_padding_names_columns_and_numbers(padding, message):
    lists = forebay.table({"n": [[1], [2, 3]], "t": ["a", "b"]}).select("n")
    with pytest.raises(forebay.InvalidError) as raised:
        lists.load(format="numpy", padding=padding)
    assert raised.value.message == message


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bucket_by_length": "nope", "bucket_boundaries": [3], "global_batch_size": 2}, '"nope"'),
        ({"bucket_by_length": "tokens"}, "bucket_boundaries"),
        ({"bucket_boundaries": [3]}, "bucket_by_length"),
        ({"bucket_by_length": "tokens", "bucket_boundaries": [3]}, "global_batch_size"),
        ({"bucket_by_length": "tokens", "bucket_boundaries": [5, 3], "global_batch_size": 2}, "ascending"),
        ({"delivery": "dynamic", "rank": 0, "world_size": 2}, "dynamic"),
        ({"padding": {"tokens": 0}}, '"padding" makes tensors, and format="arrow" has none'),
        ({"device": "cpu"}, '"device" and "pin_memory" are for format="torch", not "arrow"'),
        ({"device": "nonsense", "format": "torch"}, '"device" must be a torch device such as "cuda:0", got \'nonsense\''),
        ({"format": "tf"}, 'format="tf" needs the package tensorflow'),
    ],
    ids=repr,
)
def test_arguments_that_do_not_fit_each_other_are_named(rows, options, message):
    with pytest.raises(forebay.InvalidError) as raised:
        rows.load(**({"format": "arrow"} | options))
    assert message in str(raised.value)


def test_integers_and_sizes_of_several_kinds_are_taken(rows):
    import numpy as np
    import torch

    assert rows.load(format="arrow", batch_size=np.int32(4)).batch_size == 4
    assert rows.load(format="arrow", batch_size=torch.tensor(4)).batch_size == 4
    ids = {rows.load(format="arrow", window_bytes=size).feed_id for size in (65536, "65536", "64KiB", "64 kib", "0.0625MiB")}
    assert len(ids) == 1
    assert rows.load(format="arrow", columns=("n",)).columns == {"n": "Int64"}


PIPELINES = [
    (5, forebay.InvalidError, '"pipeline" must be a pipeline\'s name, SQL,'),
    (None, forebay.InvalidError, '"pipeline" must be a pipeline\'s name, SQL,'),
    (["SELECT 1"], forebay.InvalidError, '"pipeline" must be a pipeline\'s name, SQL,'),
    ("no_such_pipeline", forebay.NotFoundError, "no_such_pipeline"),
    ("", forebay.Error, "pipeline"),
    ("missing/pipelines.sql", forebay.InvalidError, 'the script "missing/pipelines.sql" does not exist'),
    ("SHOW TABLES", forebay.InvalidError, "the SQL creates no pipeline"),
]


@pytest.mark.parametrize("source, error, message", PIPELINES, ids=repr)
def test_what_is_no_pipeline_is_named(source, error, message):
    with pytest.raises(error) as raised:
        forebay.load(source, format="arrow")
    assert message in str(raised.value)


TABLES = [
    (5, {}, forebay.InvalidError, "a table cannot be made of int"),
    (None, {}, forebay.InvalidError, "a table cannot be made of NoneType"),
    ([{"a": 1}, 2], {}, forebay.InvalidError, "a table cannot be made of list"),
    (pa.array([1, 2]), {}, forebay.InvalidError, "a table cannot be made of Int64Array"),
    ("no_such_table", {}, forebay.NotFoundError, "no_such_table"),
    ("", {}, forebay.InvalidError, "\"source\" must be a table's name, a path or URL of files, or Arrow data, got ''"),
    ("/no/such/file.parquet", {}, forebay.Error, "/no/such/file.parquet"),
    ("/no/such/folder", {}, forebay.NotFoundError, '"/no/such/folder" does not exist'),
    ("/tmp/a.parquet", {"format": "orc"}, forebay.InvalidError, "\"format\" must be 'parquet', 'csv', 'jsonl' or 'media', got 'orc'"),
    ("/tmp/a.parquet", {"format": 5}, forebay.InvalidError, "\"format\" must be 'parquet', 'csv', 'jsonl' or 'media', got 5"),
    ("/tmp/a.parquet", {"name": 5}, forebay.InvalidError, '"name" must be a string, got 5'),
]  # fmt: skip


@pytest.mark.parametrize("source, options, error, message", TABLES)
def test_what_is_no_table_is_named(source, options, error, message):
    with pytest.raises(error) as raised:
        forebay.table(source, **options)
    assert message in str(raised.value)


def test_an_empty_folder_says_that_there_are_no_files(tmp_path):
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.table(tmp_path)
    assert f'"{tmp_path}" does not indicate the format of its files' in raised.value.message
    with pytest.raises(forebay.Error) as raised:
        forebay.table(tmp_path, format="parquet")
    assert str(tmp_path) in raised.value.message


BUILDER = [
    (lambda table: table.filter(3), '"condition" must be SQL text'),
    (lambda table: table.select(), "select() needs at least one column"),
    (lambda table: table.select(3), '"column" must be SQL text'),
    (lambda table: table.select(a=3), '"column" must be SQL text'),
    (lambda table: table.drop("m"), "\"name\" must be 'n' or 'tokens', got 'm'"),
    (lambda table: table.unnest("m"), "\"column\" must be 'n' or 'tokens', got 'm'"),
    (lambda table: table.sample(0), '"fraction" must be above 0 and at most 1, got 0'),
    (lambda table: table.sample(1.5), '"fraction" must be above 0 and at most 1, got 1.5'),
    (lambda table: table.sample("half"), "\"fraction\" must be above 0 and at most 1, got 'half'"),
    (lambda table: table.limit(0), '"rows" must be a positive integer, got 0'),
    (lambda table: table.limit(None), '"rows" must be a positive integer, got None'),
    (lambda table: table.pack(0), '"length" must be a positive integer, got 0'),
    (lambda table: table.pack(None), '"length" must be a positive integer, got None'),
    (lambda table: table.preview(0), '"rows" must be a positive integer, got 0'),
    (lambda table: table.preview(None), '"rows" must be a positive integer, got None'),
]


@pytest.mark.parametrize("number", range(len(BUILDER)))
def test_the_builder_names_what_is_wrong(number):
    call, message = BUILDER[number]
    with pytest.raises(forebay.InvalidError) as raised:
        call(forebay.table(pa.table({"n": [1], "tokens": [[1]]})))
    assert message in raised.value.message


SESSIONS = [
    ({"threads": 0}, '"threads" must be a positive integer, got 0'),
    ({"threads": "two"}, "\"threads\" must be a positive integer, got 'two'"),
    ({"window_memory_limit": "big"}, "\"window_memory_limit\" must be a size such as '64MiB'"),
    ({"base": 5}, '"base" must be a path, got 5'),
    ({"root": 5}, '"root" must be a path, got 5'),
]


@pytest.mark.parametrize("options, message", SESSIONS, ids=repr)
def test_a_session_names_what_is_wrong(options, message):
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.Session(**options)
    assert message in raised.value.message


@pytest.mark.parametrize("text", [5, None, b"SELECT 1"], ids=repr)
def test_sql_wants_text_or_a_path(text):
    with pytest.raises(forebay.InvalidError, match='"text" must be SQL or the path of a script, got'):
        forebay.sql(text)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"host": "everywhere", "insecure": True}, '"host" must be an IP address, got "everywhere"'),
        ({"host": "0.0.0.0"}, '"host" 0.0.0.0 is reachable from other machines, and this server has neither TLS nor tokens'),
        ({"host": 5}, '"host" must be an IP address, got 5'),
        ({"port": -1}, '"port" must be from 0 to 65535, got -1'),
        ({"port": 65536}, '"port" must be from 0 to 65535, got 65536'),
        ({"port": "http"}, "\"port\" must be from 0 to 65535, got 'http'"),
    ],
    ids=repr,
)
def test_serve_names_what_is_wrong(options, message):
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.serve(**options)
    assert message in raised.value.message


CONNECT = [
    (None, {}, '"uri" must be'),
    (5, {}, '"uri" must be'),
    ("", {}, '"" is not an address'),
    ("grpc://", {}, '"grpc://" is not an address'),
    ("ftp://127.0.0.1:7070", {}, 'unknown scheme "ftp"'),
    ("grpc://127.0.0.1:7070", {"token": 5}, '"token" must be a string, got 5'),
    ("grpc://127.0.0.1:7070", {"tls": "ca.pem"}, '"tls" must be a dict of '),
    ("grpc://127.0.0.1:7070", {"tls": {"cert_file": "x"}}, "\"tls\" must be 'ca', 'cert', 'key' or 'server_name', got 'cert_file'"),
    ("grpc+tls://127.0.0.1:7070", {"tls": {"ca": 5}}, '"tls" must be a dict of '),
    ("grpc://127.0.0.1:7070", {"insecure": "yes"}, "\"insecure\" must be True or False, got 'yes'"),
    ("grpc://127.0.0.1:7070", {"retry_for": -1}, '"retry_for" must be seconds, got -1'),
    ("grpc://127.0.0.1:7070", {"retry_for": "1s"}, "\"retry_for\" must be seconds, got '1s'"),
    ("grpc://127.0.0.1:7070", {"retry_for": float("nan")}, '"retry_for" must be seconds, got nan'),
    ("grpc://127.0.0.1:7070", {"buffer_limit": 0}, '"buffer_limit" must be a size such as'),
]  # fmt: skip


@pytest.mark.parametrize("uri, options, message", CONNECT, ids=repr)
def test_connect_names_what_is_wrong(uri, options, message):
    with pytest.raises(forebay.InvalidError) as raised:
        forebay.connect(uri, **({"retry_for": 0} | options))
    assert message in str(raised.value)


def test_a_missing_certificate_is_not_found():
    with pytest.raises(forebay.NotFoundError, match="/no/such.pem"):
        forebay.connect("grpc+tls://127.0.0.1:7070", tls={"ca": "/no/such.pem"}, retry_for=0)


@pytest.mark.parametrize("pipeline", [5, None, "SELECT * FROM t", forebay.Table], ids=repr)
def test_a_cluster_wants_the_name_of_a_pipeline(server, pipeline):
    with pytest.raises(forebay.InvalidError, match='"pipeline" must be the name of a pipeline that the server offers') as raised:
        forebay.connect(server.uri).load(pipeline)
    assert raised.value.hint.startswith("it offers:")


def test_a_cluster_checks_options_like_load(server):
    with pytest.raises(forebay.InvalidError, match='"batch_size" must be a positive integer, got 0'):
        forebay.connect(server.uri).load("rows", batch_size=0)
    with pytest.raises(forebay.NotFoundError, match="no_such"):
        forebay.connect(server.uri).load("no_such", format="arrow")
