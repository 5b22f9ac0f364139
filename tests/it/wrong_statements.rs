//! Wrong statements get messages of ours: no error of a library reaches a user as the library words it.
//!
//! The statements are a list by hand over all clauses, calls of many functions with wrong arguments, operators between
//! columns of all types, and mutations of correct statements by a seed. A statement that can be planned runs, and the
//! reason of its first bad row is a message too. `FOREBAY_SEED` repeats a run.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int64Array, ListArray,
    RecordBatch, StringArray, StructArray, TimestampMicrosecondArray, UInt8Array,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use forebay_engine::{FeedOptions, OnError, ReadOptions, Session};

/// Parts of messages that only a library would write.
const FOREIGN: &[&str] = &[
    "internal",
    "Internal",
    "Ident {",
    "Ident(",
    "Identifier(",
    "Span(",
    "Location(",
    "Some(",
    "None)",
    "bug",
    "Execution error",
    "Arrow error",
    "Cast error",
    "Compute error",
    "Parser error",
    "ParserError",
    "Parquet error",
    "Csv error",
    "Json error",
    "DataFusion error",
    "External error",
    "Error during planning",
    "Schema error",
    "SQL error",
    "This feature is not implemented",
    "Optimizer rule",
    "caused by",
    "TypeSignature",
    "Signature",
    "LogicalPlan",
    "ScalarFunction",
    "BinaryExpr",
    "panicked",
    " { ",
    "::",
    "backtrace",
    "?table?",
];

const BY_HAND: &str = include_str!("wrong_statements.txt");

const FUNCTIONS: &[&str] = &[
    "abs",
    "acos",
    "array_append",
    "array_concat",
    "array_distinct",
    "array_element",
    "array_has",
    "array_length",
    "array_max",
    "array_position",
    "array_remove",
    "array_slice",
    "array_sort",
    "array_sum",
    "array_to_string",
    "ascii",
    "atan2",
    "bit_length",
    "btrim",
    "cardinality",
    "ceil",
    "char_length",
    "chr",
    "coalesce",
    "concat",
    "concat_ws",
    "contains",
    "date_bin",
    "date_part",
    "date_trunc",
    "decode",
    "decode_image",
    "encode",
    "ends_with",
    "exp",
    "factorial",
    "find_in_set",
    "flatten",
    "floor",
    "from_unixtime",
    "gcd",
    "get_field",
    "greatest",
    "hash_bucket",
    "initcap",
    "isnan",
    "json_array_length",
    "json_extract",
    "json_extract_string",
    "json_keys",
    "json_type",
    "json_valid",
    "lcm",
    "least",
    "left",
    "length",
    "levenshtein",
    "ln",
    "log",
    "lower",
    "lpad",
    "ltrim",
    "make_array",
    "make_date",
    "map_keys",
    "md5",
    "named_struct",
    "nanvl",
    "normalize",
    "nullif",
    "nvl",
    "one_hot",
    "overlay",
    "power",
    "range",
    "regexp_count",
    "regexp_like",
    "regexp_match",
    "regexp_replace",
    "repeat",
    "replace",
    "resize",
    "reverse",
    "round",
    "rpad",
    "sha256",
    "signum",
    "split_part",
    "sqrt",
    "starts_with",
    "string_to_array",
    "strpos",
    "struct",
    "substr",
    "substr_index",
    "tensor_add",
    "to_char",
    "to_date",
    "to_hex",
    "to_local_time",
    "to_timestamp",
    "to_unixtime",
    "tokenize",
    "translate",
    "trunc",
    "union_extract",
    "unnest",
    "upper",
    "word_count",
];

const ARGUMENTS: &[&str] = &[
    "",
    "ls",
    "st",
    "id, id, id, id, id, id, id",
    "bytes",
    "s, ls",
    "flag, st",
    "tz, s",
    "NULL",
    "'x', 'y'",
    "dec, s",
];

const OPERATORS: &[&str] = &["+", "-", "*", "/", "%", "||", "AND", "=", "<", "LIKE", "~", "&", "->", "->>"];

const COLUMNS: &[&str] = &["id", "u", "x", "dec", "s", "flag", "day", "tz", "bytes", "ls", "st", "NULL", "[1]"];

const CORRECT: &[&str] = &[
    "SELECT id + 1 AS a, upper(s) AS b, st.q, ls[1] AS c FROM t WHERE id > 1 AND s LIKE 'a%'",
    "SELECT CASE WHEN flag THEN id ELSE u END AS a, CAST(s AS BIGINT) AS b, day + INTERVAL '1 day' AS c FROM t",
    "SELECT hash_bucket(s, buckets => 10, seed => 3) AS a, j -> '$.a[0]' AS b, sha256(bytes) AS c FROM t",
    "SELECT t.id, r.name FROM t JOIN r ON t.id = r.id WHERE t.id BETWEEN 1 AND 3",
    "SELECT id, unnest(ls) AS item FROM t TABLESAMPLE (50 PERCENT) REPEATABLE (1)",
    "SELECT * FROM (SELECT id, ls FROM t LIMIT 2) WHERE id IN (SELECT id FROM r)",
];

fn rows() -> RecordBatch {
    let structs = StructArray::from(vec![
        (Arc::new(Field::new("q", DataType::Int64, true)), Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef),
        (Arc::new(Field::new("r", DataType::Utf8, true)), Arc::new(StringArray::from(vec!["a", "b", "c"]))),
    ]);
    let lists = [Some(vec![Some(1), Some(2)]), Some(vec![]), Some(vec![None])];
    let decimals = Decimal128Array::from(vec![10_i128.pow(37), 1, 0]).with_precision_and_scale(38, 2);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(vec![i64::MAX, 0, -3]))),
        ("u", Arc::new(UInt8Array::from(vec![16, 2, 0]))),
        ("i8", Arc::new(Int8Array::from(vec![-128, 3, 0]))),
        ("x", Arc::new(Float64Array::from(vec![1.5, f64::NAN, 1e300]))),
        ("dec", Arc::new(decimals.expect("38 digits"))),
        ("s", Arc::new(StringArray::from(vec!["apple", "", "7"]))),
        ("j", Arc::new(StringArray::from(vec!["{\"a\": [1]}", "[", "null"]))),
        ("flag", Arc::new(BooleanArray::from(vec![true, false, true]))),
        ("day", Arc::new(Date32Array::from(vec![20_000, -1, i32::MAX]))),
        ("tz", Arc::new(TimestampMicrosecondArray::from(vec![0, 1, i64::MAX]).with_timezone("Europe/Zurich"))),
        ("bytes", Arc::new(BinaryArray::from_vec(vec![b"\xff\xd8", b"", b"x"]))),
        ("ls", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("st", Arc::new(structs)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .expect("columns of one length")
}

async fn session() -> Session {
    let session = Session::builder().threads(1).root("memory:///root").build().expect("a session");
    let rows = rows();
    session.register(Some("t"), rows.schema(), vec![rows]).await.expect("a table");
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let rows = RecordBatch::try_from_iter([("id", ids), ("name", names)]).expect("columns of one length");
    session.register(Some("r"), rows.schema(), vec![rows]).await.expect("a table");
    session
}

/// The message of a statement, if it is wrong, and whether it needs a place in the text.
async fn message(session: &Session, statement: &str) -> Option<(String, bool)> {
    let is_query = ["SELECT", "WITH", "FROM"].iter().any(|word| statement.trim_start().starts_with(word));
    let text = match is_query {
        true => format!("CREATE OR REPLACE PIPELINE p AS {statement}"),
        false => statement.to_owned(),
    };
    if let Err(error) = session.execute("q.sql", &text).await {
        return Some((error.to_string(), true));
    }
    if !is_query {
        return None;
    }
    let options = FeedOptions { on_error: Some(OnError::Raise), ..FeedOptions::default() };
    let opened = session.open("p", &options);
    let reader = opened.and_then(|feed| feed.read(&ReadOptions { epochs: Some(1), ..ReadOptions::default() }));
    match reader {
        Err(error) => Some((error.to_string(), false)),
        Ok(mut reader) => loop {
            match reader.next().await {
                None => break None,
                Some(Ok(_)) => {}
                Some(Err(error)) => break Some((error.to_string(), false)),
            }
        },
    }
}

/// Our own generator, so that a seed always has the same meaning.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// A correct statement with some of its words removed, doubled, or replaced by words of others.
fn mutated(random: &mut Random) -> String {
    let words_of = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut words = words_of(CORRECT[random.below(CORRECT.len())]);
    let others = words_of(CORRECT[random.below(CORRECT.len())]);
    for _ in 0..1 + random.below(2) {
        let at = 1 + random.below(words.len() - 1);
        match random.below(4) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            2 => words[at] = others[random.below(others.len())].clone(),
            _ => words[at] = words[at].chars().rev().collect(),
        }
    }
    words.join(" ")
}

fn statements(seed: u64) -> Vec<String> {
    let mut all: Vec<String> = BY_HAND.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    for (at, function) in FUNCTIONS.iter().enumerate() {
        for of in 0..2 {
            let arguments = ARGUMENTS[(at + of * 5) % ARGUMENTS.len()];
            all.push(format!("SELECT {function}({arguments}) AS y FROM t"));
        }
    }
    for (at, operator) in OPERATORS.iter().enumerate() {
        for (of, left) in COLUMNS.iter().enumerate() {
            let right = COLUMNS[(at + of * 3) % COLUMNS.len()];
            all.push(format!("SELECT {left} {operator} {right} AS y FROM t"));
        }
    }
    let mut random = Random(seed | 1);
    all.extend((0..200).map(|_| mutated(&mut random)));
    all
}

#[tokio::test]
async fn messages_are_in_our_form() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_u64);
    let session = session().await;
    let (mut wrong, mut found) = (0, Vec::new());
    for statement in statements(seed) {
        let Some((message, needs_place)) = message(&session, &statement).await else { continue };
        wrong += 1;
        let foreign: Vec<&str> =
            FOREIGN.iter().copied().filter(|part| message.contains(part) && !statement.contains(part)).collect();
        if !foreign.is_empty() {
            found.push(format!("{statement}\n  has {foreign:?}\n{message}\n"));
        } else if needs_place && !message.contains("--> q.sql:") {
            found.push(format!("{statement}\n  has no place\n{message}\n"));
        } else if message.trim_start_matches("error: ").starts_with(|first: char| first.is_uppercase())
            && !message.trim_start_matches("error: ").starts_with(|first: char| first.is_ascii_punctuation())
            && !begins_with_sql(&message)
        {
            found.push(format!("{statement}\n  does not begin in lower case\n{message}\n"));
        }
    }
    assert!(found.is_empty(), "FOREBAY_SEED={seed}: {} messages:\n{}", found.len(), found.join("\n"));
    assert!(wrong >= 300, "FOREBAY_SEED={seed}: only {wrong} statements were wrong");
}

/// Whether a message begins with a word of SQL, or with a type: `Int64 + Int64 overflows`.
fn begins_with_sql(message: &str) -> bool {
    let first = message.trim_start_matches("error: ").split([' ', '(']).next().unwrap_or_default();
    first.chars().all(|char| char.is_uppercase() || char.is_ascii_digit() || char == '_')
        || first.chars().any(|char| char.is_ascii_digit())
}
