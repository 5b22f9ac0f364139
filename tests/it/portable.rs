//! The same bytes on every machine.

use std::process::Command;

use crate::support::{Folder, forebay, succeed};

/// The C library picks the code of its mathematics by the processor. This hides the extensions that it looks for.
const OLD_PROCESSOR: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F,-AVX512VL,-AVX2_Usable,-FMA_Usable");

/// Every function whose result could depend on the machine.
const FUNCTIONS: &str = "
    acos(u) AS acos, acosh(abs(x) + 1) AS acosh, asin(u) AS asin, asinh(x) AS asinh, atan(x) AS atan,
    atan2(x, u) AS atan2, atanh(u) AS atanh, cbrt(x) AS cbrt, cos(x) AS cos, cosh(u) AS cosh, cot(x) AS cot,
    degrees(x) AS degrees, exp(u) AS exp, ln(abs(x)) AS ln, log(abs(x)) AS log, log(3, abs(x)) AS log3,
    log10(abs(x)) AS log10, log2(abs(x)) AS log2, power(abs(x), u) AS power, radians(x) AS radians,
    round(x, 3) AS round, sin(x) AS sin, sinh(u) AS sinh, sqrt(abs(x)) AS sqrt, tan(x) AS tan, tanh(x) AS tanh,
    trunc(x, 2) AS trunc, x % 0.7 AS modulo, exp(CAST(u AS FLOAT)) AS exp_single,
    ln(CAST(abs(x) AS FLOAT)) AS ln_single, sin(CAST(x AS FLOAT)) AS sin_single, tanh(CAST(u AS FLOAT)) AS tanh_single, CAST(x AS VARCHAR) AS text,
    log1p(abs(x)) AS log1p, boxcox(abs(x), 0.3) AS boxcox, logit(abs(u)) AS logit, cyclic(x, 7.3) AS cyclic";

#[test]
fn results_do_not_depend_on_the_processor() {
    let folder = Folder::new();
    let rows: String = (0..20_000_u64)
        .map(|row| {
            let drawn = (row + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
            let u = drawn as f64 / (1_u64 << 52) as f64 - 1.0;
            format!("{},{u}\n", u * 97.3)
        })
        .collect();
    folder.write("rows.csv", format!("x,u\n{rows}"));
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE numbers STORED AS CSV LOCATION 'rows.csv';
         CREATE PIPELINE numbers WITH (batch_size = 1000) AS SELECT {FUNCTIONS} FROM numbers WHERE exp(u) > sin(x);"
    ));
    let batches = |command: &mut Command| -> Vec<String> {
        let lines = succeed(command);
        lines.lines().filter(|line| line.contains("\"digest\"")).map(str::to_owned).collect()
    };
    let arguments = ["run", "--output", "json", &script];
    let here = batches(&mut forebay(arguments));
    assert!(here.len() > 10, "{here:?}");
    assert_eq!(here, batches(forebay(arguments).env(OLD_PROCESSOR.0, OLD_PROCESSOR.1)));
}

/// The same for all of `tests/slt`, whose results are written down.
#[test]
fn every_slt_file_holds_on_an_older_processor() {
    let slt = ["--exact", "slt::every_slt_file_holds"];
    let mut tests = Command::new(std::env::current_exe().expect("this test's own program"));
    let output = tests.args(slt).env(OLD_PROCESSOR.0, OLD_PROCESSOR.1).output().expect("the tests start");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
