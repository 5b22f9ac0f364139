//! Statements and their places.

use datafusion::arrow::datatypes::SchemaRef;
use forebay_sql::{MaterializeSource, OptionValue, Place, Statement, parse};

use crate::pipeline;

#[test]
fn a_script_of_all_statements() {
    let script = "-- everything\n\
        CREATE EXTERNAL TABLE IF NOT EXISTS Photos (Path VARCHAR NOT NULL, size BIGINT) STORED AS parquet\n\
        OPTIONS ('Format.x' 'Y', z 3) LOCATION 's3://b/photos/';;\n\
        create or replace pipeline train with (seed = 1) as select * from photos;\n\
        SHOW PIPELINES; SHOW TABLES /* ; */; DESCRIBE PIPELINE \"Train\"; DESC PIPELINE train;\n\
        DESCRIBE photos; DESCRIBE TABLE photos; DESCRIBE pipeline; EXPLAIN PIPELINE train;\n\
        DROP PIPELINE IF EXISTS train; DROP PIPELINE train; DROP TABLE photos; DROP TABLE IF EXISTS photos;\n\
        materialize Train to 's3://b/it''s' with (format = 'csv', file_size = '64MiB');\n\
        MATERIALIZE (SELECT (a) FROM t) TO 'x';\n\
        select count(*) from t; WITH a AS (SELECT 1) SELECT * FROM a; (SELECT 1) UNION SELECT 2; VALUES (1)";
    let statements: Vec<String> = parse(script)
        .unwrap()
        .iter()
        .map(|statement| match statement {
            Statement::CreateTable(table) => format!(
                "table {} {} {} {} at {} location at {}, type at {}: {:?} {:?}",
                table.name,
                table.file_type,
                table.location,
                table.if_not_exists,
                table.place,
                table.location_place,
                table.file_type_place,
                table.columns.as_ref().map(|schema| schema
                    .fields()
                    .iter()
                    .map(|field| format!("{} {} {}", field.name(), field.data_type(), field.is_nullable()))
                    .collect::<Vec<_>>()),
                table.options
            ),
            Statement::CreatePipeline(pipeline) => format!(
                "pipeline {} {} {} at {} and {}: {}",
                pipeline.name,
                pipeline.or_replace,
                pipeline.if_not_exists,
                pipeline.name_place,
                pipeline.place,
                pipeline.text
            ),
            Statement::DropTable { name, if_exists, place } => format!("drop table {name} {if_exists} at {place}"),
            Statement::DropPipeline { name, if_exists, place } => {
                format!("drop pipeline {name} {if_exists} at {place}")
            }
            Statement::ShowPipelines => "show pipelines".to_owned(),
            Statement::ShowTables => "show tables".to_owned(),
            Statement::DescribePipeline { name, place } => format!("describe pipeline {name} at {place}"),
            Statement::DescribeTable { name, place } => format!("describe table {name} at {place}"),
            Statement::ExplainPipeline { name, place } => format!("explain pipeline {name} at {place}"),
            Statement::Materialize(job) => {
                let source = match &job.source {
                    MaterializeSource::Pipeline { name, place } => format!("{name} at {place}"),
                    MaterializeSource::Query(query) => format!("({}) at {}", query.text, query.place),
                };
                let options: Vec<_> = job.options.iter().map(|it| format!("{} = {}", it.name, it.value)).collect();
                format!("materialize {source} to {} at {} {options:?}", job.url, job.url_place)
            }
            Statement::Query(query) => format!("query at {}: {}", query.place, query.text),
        })
        .collect();
    let expected = [
        "table photos PARQUET s3://b/photos/ true at line 2, column 1 location at line 3, column 40, type at line 2, \
         column 91: \
         Some([\"path Utf8 false\", \"size Int64 true\"]) [(\"format.x\", \"Y\"), (\"z\", \"3\")]",
        "pipeline train true false at line 4, column 28 and line 4, column 53: select * from photos",
        "show pipelines",
        "show tables",
        "describe pipeline Train at line 5, column 56",
        "describe pipeline train at line 5, column 79",
        "describe table photos at line 6, column 10",
        "describe table photos at line 6, column 33",
        "describe table pipeline at line 6, column 50",
        "explain pipeline train at line 6, column 77",
        "drop pipeline train true at line 7, column 25",
        "drop pipeline train false at line 7, column 46",
        "drop table photos false at line 7, column 64",
        "drop table photos true at line 7, column 93",
        "materialize train at line 8, column 13 to s3://b/it's at line 8, column 22 [\"format = 'csv'\", \"file_size = '64MiB'\"]",
        "materialize (SELECT (a) FROM t) at line 9, column 14 to x at line 9, column 36 []",
        "query at line 10, column 1: select count(*) from t",
        "query at line 10, column 25: WITH a AS (SELECT 1) SELECT * FROM a",
        "query at line 10, column 63: (SELECT 1) UNION SELECT 2",
        "query at line 10, column 90: VALUES (1)",
    ];
    for (actual, expected) in statements.iter().zip(expected) {
        assert_eq!(actual, expected);
    }
    assert_eq!(statements.len(), expected.len());
}

#[test]
fn names_in_partitioned_by_are_identifiers() {
    let columns = |clauses: &str| {
        let text =
            format!("CREATE EXTERNAL TABLE t {clauses} LOCATION 'x'").replace('%', "STORED AS CSV PARTITIONED BY");
        let Ok([Statement::CreateTable(table)]) = parse(&text).map(|it| <[Statement; 1]>::try_from(it).unwrap()) else {
            panic!("{text}: {:?}", parse(&text));
        };
        let names = |schema: Option<SchemaRef>| {
            let schema = schema.into_iter().flat_map(|it| it.fields().to_vec());
            schema.map(|it| format!("{} {}", it.name(), it.data_type())).collect::<Vec<_>>().join(", ")
        };
        format!("{} | {}", names(table.columns), names(table.path_columns))
    };
    assert_eq!(columns("% (Country VARCHAR)"), " | country Utf8");
    assert_eq!(columns("% (Country, \"Day\")"), " | country Null, Day Null");
    assert_eq!(columns("% (\"Country\" VARCHAR, `a \"b\"` INT)"), " | Country Utf8, a \"b\" Int32");
    assert_eq!(columns("(A INT, B INT) % (b)"), "a Int32 | b Int32");
    assert_eq!(columns("(a INT) % (\"A\" INT)"), "a Int32 | A Int32");
    for (clauses, name) in [("% (a, A)", "a"), ("% (\"A b\", \"A b\")", "A b")] {
        let text =
            format!("CREATE EXTERNAL TABLE t {clauses} LOCATION 'x'").replace('%', "STORED AS CSV PARTITIONED BY");
        let error = parse(&text).unwrap_err();
        assert_eq!(error.message(), format!("PARTITIONED BY names column \"{name}\" twice"));
        assert_eq!(error.place(), Some(Place { line: 1, column: 39 }));
    }
}

#[test]
fn empty_texts_have_no_statements() {
    for text in ["", " \n\t", "-- nothing", "/* nothing */", ";;", ";\n-- x\n;"] {
        assert_eq!(parse(text).unwrap(), vec![], "{text:?}");
    }
}

#[test]
fn options_are_read_as_written() {
    let text = "CREATE PIPELINE p WITH (batch_size = 256, SEED => -17, scale=+0.5, shuffle = True, drop_last=>FALSE,\n\
                \t\"Mixed\" = 'it''s', 'quoted' = bare, format.header = \"Word\", compression = gzip,) AS SELECT 1";
    let options: Vec<String> = pipeline(text)
        .unwrap()
        .options
        .iter()
        .map(|option| format!("{} = {:?} at {} and {}", option.name, option.value, option.place, option.value_place))
        .collect();
    assert_eq!(
        options,
        [
            "batch_size = Number(\"256\") at line 1, column 25 and line 1, column 38",
            "seed = Number(\"-17\") at line 1, column 43 and line 1, column 51",
            "scale = Number(\"0.5\") at line 1, column 56 and line 1, column 62",
            "shuffle = Boolean(true) at line 1, column 68 and line 1, column 78",
            "drop_last = Boolean(false) at line 1, column 84 and line 1, column 95",
            "Mixed = Text(\"it's\") at line 2, column 2 and line 2, column 12",
            "quoted = Text(\"bare\") at line 2, column 21 and line 2, column 32",
            "format.header = Text(\"Word\") at line 2, column 38 and line 2, column 54",
            "compression = Text(\"gzip\") at line 2, column 62 and line 2, column 76",
        ]
    );
    assert_eq!(OptionValue::Text("it's".into()).to_string(), "'it''s'");
}

#[test]
fn a_query_keeps_its_text_and_place() {
    let cases = [
        ("CREATE PIPELINE p AS SELECT 1", "SELECT 1", (1, 22)),
        (
            "CREATE PIPELINE p AS\r\n\tSELECT 'ä;', -- ö\r\n  \"größe\"\r\n  ; SHOW TABLES",
            "SELECT 'ä;', -- ö\r\n  \"größe\"",
            (2, 2),
        ),
        ("SHOW TABLES; CREATE PIPELINE \"日本\" AS /* x */ (SELECT a FROM t) -- end", "(SELECT a FROM t)", (1, 46)),
        ("CREATE PIPELINE p AS WITH a AS (SELECT 1) SELECT * FROM a", "WITH a AS (SELECT 1) SELECT * FROM a", (1, 22)),
    ];
    for (text, expected, (line, column)) in cases {
        let pipelines: Vec<_> = parse(text)
            .unwrap()
            .into_iter()
            .filter_map(|statement| match statement {
                Statement::CreatePipeline(pipeline) => Some(pipeline),
                _ => None,
            })
            .collect();
        assert_eq!(pipelines[0].text, expected);
        assert_eq!(pipelines[0].place, Place { line, column });
        // A statement stored in a catalog can be parsed again.
        let again = pipeline(&format!("CREATE PIPELINE q AS {}", pipelines[0].text)).unwrap();
        assert_eq!(again.text, pipelines[0].text);
        assert_eq!(again.query, pipelines[0].query);
        let again = pipeline(&pipelines[0].statement).unwrap();
        assert_eq!((&again.name, again.options.len()), (&pipelines[0].name, pipelines[0].options.len()));
        assert_eq!((&again.query, &again.statement), (&pipelines[0].query, &pipelines[0].statement));
    }
}
