//! Tests of the operators on tables against their reference implementations.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, ListArray, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type};
use serde_json::Value;

use crate::testing::{call, column, golden, sql};

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str().and_then(|text| text.parse().ok()))
}

/// Returns the numbers of a column, or of its fixed-size lists one after the other.
fn numbers(array: &ArrayRef) -> Vec<Option<f64>> {
    let values = array.as_fixed_size_list_opt().map_or(array, |list| list.values());
    let values = cast(values, &DataType::Float64).unwrap();
    values.as_primitive::<Float64Type>().iter().collect()
}

/// Compares numbers with a tolerance for different implementations of a logarithm or a power.
fn is_near(got: f64, expect: f64) -> bool {
    got == expect || (got.is_nan() && expect.is_nan()) || (got - expect).abs() <= 4e-7 * expect.abs().max(0.3)
}

#[test]
fn values_are_those_of_the_references() {
    let golden = golden("table");
    let values = |name: &str| golden[name].as_array().unwrap().clone();
    let floats: Vec<_> = values("floats").iter().map(number).collect();
    let integers = |name: &str| Int64Array::from(values(name).iter().map(Value::as_i64).collect::<Vec<_>>());
    let words: Vec<_> = values("words").iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    let columns: [(&str, ArrayRef); 4] = [
        ("floats", Arc::new(Float64Array::from(floats))),
        ("integers", Arc::new(integers("integers"))),
        ("signed", Arc::new(integers("signed"))),
        ("words", Arc::new(StringViewArray::from(words))),
    ];
    for (name, array) in columns {
        for (text, expect) in golden["of"][name].as_object().unwrap() {
            let field = Field::new("x", array.data_type().clone(), true);
            let (_, got) = call(text, vec![(field, Arc::clone(&array))]).unwrap();
            let (got, expect) = (numbers(&got), expect.as_array().unwrap());
            assert_eq!(got.len(), expect.len(), "{text}");
            for (row, (got, expect)) in got.into_iter().zip(expect.iter().map(number)).enumerate() {
                let (got, expect) = (got.unwrap(), expect.unwrap());
                assert!(is_near(got, expect), "{text}, value {row}: {got} and not {expect}");
            }
        }
    }
}

#[test]
fn lists_are_mapped_value_by_value_and_nulls_stay() {
    let lists = || {
        let rows = [Some(vec![Some(9)]), Some(vec![Some(1), None, Some(-3)]), None, Some(vec![])];
        ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(rows).slice(1, 3)
    };
    let check = |text: &str, expect: [Option<f64>; 3]| {
        let (_, got) = call(text, vec![column("x", lists())]).unwrap();
        let list = got.as_list::<i32>();
        assert_eq!(numbers(&list.value(0)), expect, "{text}");
        assert!(list.is_null(1) && list.value(2).is_empty() && list.values().len() == 3, "{text}");
    };
    check("positive_mod(x, 2)", [Some(1.0), None, Some(1.0)]);
    check("bucketize(x, [0, 5])", [Some(1.0), None, Some(0.0)]);
    check("standardize(x, 1, 2)", [Some(0.0), None, Some(-2.0)]);
    check("map_id(x, [1], [8], 2)", [Some(8.0), None, Some(2.0)]);
    check("quantize(x, 0.5, 4)", [Some(6.0), None, Some(0.0)]);
    let (_, got) = call("first_x(x, 2)", vec![column("x", lists())]).unwrap();
    assert_eq!(numbers(&got.as_list::<i32>().value(0)), [Some(1.0), None]);
    assert!(got.is_null(1));
}

#[test]
fn hexadecimal_digits_are_read() {
    let golden = golden("table");
    let (texts, expect): (Vec<_>, Vec<_>) = golden["hex"].as_object().unwrap().iter().unzip();
    let (_, got) = sql("hex_to_int(x)", vec![column("x", StringViewArray::from_iter_values(texts))]).unwrap();
    let expect: Int64Array = expect.iter().map(|value| value.as_i64()).collect();
    assert_eq!(got.as_ref(), &expect as &dyn Array);
    for wrong in [
        "",
        "0x12",
        "-1",
        "g0000000",
        "0000000g",
        "0000/000",
        "000:0000",
        "@0000000",
        "`0000000",
        "000000é",
        "12345678901234567",
    ] {
        let got = sql("hex_to_int(x)", vec![column("x", StringViewArray::from(vec![wrong]))]).unwrap_err();
        assert_eq!(got, format!("hex_to_int: {wrong:?} is not one to sixteen hexadecimal digits"));
    }
}

#[test]
fn nulls_are_filled_and_the_type_stays() {
    let check = |text: &str, x: ArrayRef, expect: ArrayRef| {
        let (field, got) = call(text, vec![(Field::new("x", x.data_type().clone(), true), x)]).unwrap();
        assert_eq!(&got, &expect, "{text}");
        assert!(!field.is_nullable());
    };
    let bytes = |values: Vec<Option<u8>>| Arc::new(arrow::array::UInt8Array::from(values)) as ArrayRef;
    check("fill_null(x)", bytes(vec![Some(1), None]), bytes(vec![Some(1), Some(0)]));
    check("fill_null(x, 255)", bytes(vec![Some(9), None, Some(2)]).slice(1, 2), bytes(vec![Some(255), Some(2)]));
    check("fill_null(x, 255)", bytes(vec![Some(9)]), bytes(vec![Some(9)]));
    let wrong = call("fill_null(x, 256)", vec![column("x", arrow::array::UInt8Array::from(vec![1]))]).unwrap_err();
    assert_eq!(wrong, "fill_null: \"value\" must be a value that UInt8 can hold, got 256");
}

#[test]
fn a_vocabulary_is_a_list_or_a_file() {
    let path = std::env::temp_dir().join(format!("forebay-vocabulary-{}.txt", std::process::id()));
    std::fs::write(&path, "red\r\ngreen\n\n12\n007\n").unwrap();
    let colours = || StringViewArray::from(vec![Some("green"), None, Some("blue"), Some(""), Some("007"), Some("red")]);
    let text = format!("vocab_apply(x, '{}', 1, 0)", path.display());
    let (_, got) = call(&text, vec![column("x", colours())]).unwrap();
    assert_eq!(numbers(&got), [Some(2.0), None, Some(0.0), Some(3.0), Some(5.0), Some(1.0)]);
    let (_, got) = call(&text, vec![column("x", Int64Array::from(vec![Some(12), None, Some(7)]))]).unwrap();
    assert_eq!(numbers(&got), [Some(4.0), None, Some(0.0)]);
    std::fs::remove_file(&path).unwrap();

    let listed = |entries: &[&str]| {
        let entries: Vec<_> = entries.iter().map(|entry| datafusion::scalar::ScalarValue::from(*entry)).collect();
        let list = datafusion::scalar::ScalarValue::new_list(&entries, &DataType::Utf8, true);
        let list = datafusion::logical_expr::lit(datafusion::scalar::ScalarValue::List(list));
        let call = crate::testing::udf("vocab_apply").call(vec![datafusion::prelude::col("x"), list]);
        crate::testing::select(call, vec![column("x", colours())])
    };
    let (_, got) = listed(&["blue", "green"]).unwrap();
    assert_eq!(numbers(&got), [Some(1.0), None, Some(0.0), Some(-1.0), Some(-1.0), Some(-1.0)]);
    assert_eq!(listed(&["a", "a"]).unwrap_err(), "vocab_apply: \"vocabulary\" has the entry \"a\" twice");
    let none = call("vocab_apply(x, 'no/such.txt')", vec![column("x", colours())]).unwrap_err();
    assert!(none.starts_with("vocab_apply: \"vocabulary\" names a file that cannot be read: "), "{none}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let check = |text: &str, expect: &str| {
        let got = call(text, vec![column("x", Float64Array::from(vec![1.0])), column("n", Int64Array::from(vec![1]))]);
        assert_eq!(got.unwrap_err(), expect);
    };
    check("bucketize(x, [2, 1])", "bucketize: \"borders\" must be ascending numbers, got [2.0, 1.0]");
    check("cyclic(x, 0)", "cyclic: \"period\" must be above 0, got 0");
    check("logit(x, 0.6)", "logit: \"eps\" must be from 0 to 0.5, got 0.6");
    check("map_id(n, [1, 2], [3])", "map_id: \"targets\" must have as many ids as \"sources\", got 1 and 2");
    check("map_id(n, [1, 1], [3, 4])", "map_id: \"sources\" must name each id once");
    check("map_id(n, [0.5], [3])", "map_id: \"sources\" must be integers up to 2^53, got 0.5");
    check("min_max(x, 1, 1)", "min_max: \"max\" must be above \"min\", got 1 and 1");
    check("one_hot(x, 3)", "one_hot: \"index\" must be an integer, got Float64");
    check("one_hot(n, 65537)", "one_hot: \"size\" must be at most 65536, got 65537");
    check("positive_mod(x, 3)", "positive_mod: \"x\" must be an integer or a list of integers, got Float64");
    check("positive_mod(n, 0)", "positive_mod: \"divisor\" must be a positive integer, got 0");
    check("quantize(x, 0)", "quantize: \"scale\" must be above 0, got 0");
    check("quantize(x, 1, 256)", "quantize: \"zero_point\" must be from 0 to 255, got 256");
    check("standardize(x, 0, 0)", "standardize: \"std\" must be above 0, got 0");
    check("vocab_apply(x, 'a')", "vocab_apply: \"value\" must be an integer or a string, got Float64");
}
