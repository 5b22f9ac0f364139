//! Damaged texts must always return a result or an error with a place, and never panic.
//!
//! `FOREBAY_SEED` repeats a run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_sql::{Statement, parse, plan};

use crate::session;

const SCRIPTS: &[&str] = &[
    "CREATE OR REPLACE EXTERNAL TABLE photos (path VARCHAR NOT NULL, \"größe\" BIGINT) STORED AS PARQUET\n\
     OPTIONS ('a.b' 'c', d 1) LOCATION 's3://bucket/photos/*.parquet';\n\
     SHOW TABLES; DESCRIBE photos; DROP TABLE IF EXISTS photos",
    "-- ä\nCREATE PIPELINE IF NOT EXISTS train WITH (batch_size = 256, seed => -17, shuffle = true, x.y = 'z') AS\n\
     SELECT normalize(random_resized_crop(decode_image(bytes), height => 224, width => 224, scale_min => 0.08),\n\
     \tmean => [0.485, 0.456, 0.406], std => [0.229, 0.224, 0.225]) AS image, label\n\
     FROM photos WHERE size > 10 AND hash_bucket(path, buckets => 10, seed => 3) <> 0;\n\
     SHOW PIPELINES; EXPLAIN PIPELINE train; MATERIALIZE train TO 'x'; DROP PIPELINE train",
    "CREATE PIPELINE p AS WITH a AS (SELECT path, label FROM photos WHERE label IN (1, 2, 3))\n\
     SELECT CASE WHEN label = 1 THEN upper(path) ELSE 'é' || path END AS x, -label, label BETWEEN 1 AND 2\n\
     FROM (SELECT * FROM a) AS b |> WHERE x IS NOT NULL",
    "CREATE PIPELINE p AS SELECT DISTINCT count(*) OVER (PARTITION BY label ORDER BY size), random(), now()\n\
     FROM photos p TABLESAMPLE (10) JOIN scans s ON p.bytes = s.bytes, unnest([1]) WHERE EXISTS (SELECT 1)\n\
     GROUP BY 1 HAVING sum(size) > 1 ORDER BY 1 LIMIT 3 OFFSET 1 FOR UPDATE",
];

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

fn mutated(script: &str, random: &mut Random) -> String {
    let mut characters: Vec<char> = script.chars().collect();
    let all: Vec<char> = SCRIPTS.concat().chars().collect();
    for _ in 0..1 + random.below(3) {
        let at = random.below(characters.len());
        let length = 1 + random.below(6);
        let end = (at + length).min(characters.len());
        let from = random.below(all.len());
        match random.below(6) {
            0 => drop(characters.drain(at..end)),
            1 => characters.splice(at..at, all[from..(from + length).min(all.len())].iter().copied()).for_each(drop),
            2 => characters.splice(at..end, characters[at..end].to_vec().repeat(3)).for_each(drop),
            3 => characters
                .insert(at, ['(', ')', '\'', '"', ';', ',', '-', '[', '\u{0}', '日', '\n', '$'][random.below(12)]),
            4 => characters.truncate(at),
            _ => characters[at] = all[from],
        }
        if characters.is_empty() {
            break;
        }
    }
    characters.into_iter().collect()
}

#[test]
fn mutated_scripts_never_panic() {
    let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_f00d_u64);
    println!("FOREBAY_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let state = session();
    let mut random = Random(seed | 1);
    let mut planned = 0;
    for round in 0..1500 {
        let text = mutated(SCRIPTS[round % SCRIPTS.len()], &mut random);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let statements = match parse(&text) {
                Ok(statements) => statements,
                Err(error) => return drop(error.render("x", &text)),
            };
            for statement in statements {
                if let Statement::CreatePipeline(pipeline) = statement {
                    match runtime.block_on(plan(&pipeline, "".as_ref(), &state)) {
                        Ok(_) => planned += 1,
                        Err(error) => {
                            assert!(error.place().is_some(), "no place: {error}");
                            drop(error.render("x", &text));
                        }
                    }
                }
            }
        }));
        assert!(outcome.is_ok(), "FOREBAY_SEED={seed}, round {round}: {text}");
    }
    assert!(planned > 0, "no mutation was still valid: nothing was planned");
}
